#include "common/base/signals.h"

#include <unistd.h>

#include <atomic>
#include <thread>

namespace tandem::base {
namespace {

constexpr int stopSignals[] = {SIGTERM, SIGINT, SIGUSR1};

std::atomic<int> received = 0;
std::atomic<bool> interruption = false;
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free, "set by handlers");

void noteInterruption(int) { interruption = true; }

void remember(int signal) {
  if (signal == SIGINT && received == SIGINT) _exit(128 + SIGINT);
  received = signal;
}

}  // namespace

void receiveSignalsApart() {
  static std::atomic<bool> isReceived = false;
  if (isReceived.exchange(true)) return;
  std::thread([] {
    for (;;) ::pause();
  }).detach();
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : stopSignals) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

void watchStopSignals() {
  struct sigaction action {};
  action.sa_handler = &remember;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (const int signal : stopSignals) sigaction(signal, &action, nullptr);
}

int stopSignal() { return received; }

InterruptWatch::InterruptWatch() {
  interruption = false;
  struct sigaction action {};
  action.sa_handler = &noteInterruption;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, &before_);
}

InterruptWatch::~InterruptWatch() { sigaction(SIGINT, &before_, nullptr); }

bool InterruptWatch::interrupted() const { return interruption; }

}  // namespace tandem::base
