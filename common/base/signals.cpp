#include "common/base/signals.h"

#include <unistd.h>

#include <initializer_list>

namespace tandem::base {
namespace {

volatile std::sig_atomic_t received = 0;

volatile std::sig_atomic_t interruption = 0;

void noteInterruption(int) { interruption = 1; }

void remember(int signal) {
  if (signal == SIGINT && received == SIGINT) _exit(128 + SIGINT);
  received = signal;
}

}  // namespace

void watchStopSignals() {
  struct sigaction action {};
  action.sa_handler = &remember;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) sigaction(signal, &action, nullptr);
}

int stopSignal() { return received; }

InterruptWatch::InterruptWatch() {
  interruption = 0;
  struct sigaction action {};
  action.sa_handler = &noteInterruption;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, &before_);
}

InterruptWatch::~InterruptWatch() { sigaction(SIGINT, &before_, nullptr); }

bool InterruptWatch::interrupted() const { return interruption != 0; }

}  // namespace tandem::base
