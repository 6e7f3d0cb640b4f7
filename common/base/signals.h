#pragma once
// Signals that ask a job to stop: SIGTERM, SIGINT and SIGUSR1 set a flag that the step loop reads.

#include <csignal>

namespace tandem::base {

// Has the signals above handled on a thread of their own, from now on and in all threads that are started later: to be
// called before any is. A signal that interrupts a matrix product of oneDNN 2.6 on a processor with AMX destroys what
// lies on the heap (one training run in twenty that a signal ended).
void receiveSignalsApart();

// Installs the handlers. A second SIGINT ends the process at once.
void watchStopSignals();

// The signal received, or 0.
int stopSignal();

// While it lives, SIGINT sets its flag and nothing else. One at a time.
class InterruptWatch {
 public:
  InterruptWatch();
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;
  bool interrupted() const;

 private:
  struct sigaction before_ {};
};

}  // namespace tandem::base
