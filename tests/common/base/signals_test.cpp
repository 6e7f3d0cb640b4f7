#include "common/base/signals.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

namespace tandem::base {
namespace {

TEST(SignalsDeathTest, aStopSignalIsRememberedAndDoesNotKill) {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
    EXPECT_EXIT(
        {
          watchStopSignals();
          if (stopSignal() != 0) std::_Exit(1);
          std::raise(signal);
          std::_Exit(stopSignal() == signal ? 7 : 2);
        },
        testing::ExitedWithCode(7), "");
  }
}

TEST(SignalsDeathTest, aSecondInterruptEndsTheProcess) {
  EXPECT_EXIT(
      {
        watchStopSignals();
        std::raise(SIGINT);
        std::raise(SIGINT);
        std::_Exit(0);
      },
      testing::ExitedWithCode(128 + SIGINT), "");
}

// A handler that runs on a computing thread would find its own stack there.
std::atomic<pthread_t> handledBy = {};
void noteThread(int) { handledBy = pthread_self(); }

TEST(SignalsDeathTest, signalsReceivedApartInterruptNoComputingThread) {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
    EXPECT_EXIT(
        {
          receiveSignalsApart();
          std::signal(signal, noteThread);
          std::atomic<pthread_t> worker = {};
          std::thread([&] {
            worker = pthread_self();
            for (;;) continue;
          }).detach();
          while (worker.load() == 0) std::this_thread::yield();
          for (int i = 0; i < 20; ++i) {
            handledBy = 0;
            ::kill(::getpid(), signal);
            while (handledBy.load() == 0) std::this_thread::yield();
            if (handledBy.load() == pthread_self() || handledBy.load() == worker.load()) std::_Exit(1);
          }
          std::_Exit(7);
        },
        testing::ExitedWithCode(7), "");
  }
}

}  // namespace
}  // namespace tandem::base
