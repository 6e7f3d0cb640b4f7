#pragma once
// Signals that ask a job to stop: SIGTERM, SIGINT and SIGUSR1 set a flag that the step loop reads.

#include <csignal>

namespace tandem::base {

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
