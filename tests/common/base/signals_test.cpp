#include "common/base/signals.h"

#include <gtest/gtest.h>

#include <csignal>

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

}  // namespace
}  // namespace tandem::base
