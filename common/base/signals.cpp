#include "common/base/signals.h"

#include <unistd.h>

#include <csignal>
#include <initializer_list>

namespace tandem::base {
namespace {

volatile std::sig_atomic_t received = 0;

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

}  // namespace tandem::base
