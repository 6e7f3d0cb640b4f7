#include "common/base/error.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace tandem::base {
namespace {

TEST(Error, carriesKindMessageRankHostAndPlace) {
  const Identity before = identity();
  setIdentity({.rank = 3, .ranks = 8, .host = "node7"});
  const Error error(ErrorKind::badData, "'train.h5' is truncated at byte 12");
  setIdentity(before);
  EXPECT_EQ(error.kind(), ErrorKind::badData);
  EXPECT_EQ(error.message(), "'train.h5' is truncated at byte 12");
  const std::string text = error.what();
  EXPECT_TRUE(text.starts_with("bad data: 'train.h5' is truncated at byte 12 [rank 3 of 8 on node7, ")) << text;
  EXPECT_NE(text.find("base/error_test.cpp:"), std::string::npos) << text;
  EXPECT_FALSE(error.onEveryRank());
}

TEST(Error, kindDecidesTheExitCode) {
  EXPECT_EQ(exitCode(ErrorKind::usage), 2);
  EXPECT_EQ(exitCode(ErrorKind::badData), 3);
  for (const ErrorKind kind : {ErrorKind::file, ErrorKind::communication, ErrorKind::device, ErrorKind::numeric}) {
    EXPECT_EQ(exitCode(kind), 1) << name(kind);
  }
  EXPECT_EQ(exitSubmitAgain, 75);
}

TEST(Error, relayedKeepsTheWordsOfTheRankThatFailed) {
  const Error error = Error::relayed(ErrorKind::file, "disk full", "file error: disk full [rank 5 of 8]", true);
  EXPECT_EQ(error.kind(), ErrorKind::file);
  EXPECT_EQ(error.message(), "disk full");
  EXPECT_STREQ(error.what(), "file error: disk full [rank 5 of 8]");
  EXPECT_TRUE(error.onEveryRank());
}

TEST(Error, systemErrorsAreReadable) { EXPECT_EQ(systemErrorText(ENOSPC), "No space left on device"); }

TEST(AssertionDeathTest, endsTheProcessAndNamesTheCondition) {
  EXPECT_DEATH(TANDEM_ASSERT(1 + 1 == 3, "arithmetic broke"), "arithmetic broke .*1 \\+ 1 == 3");
  TANDEM_ASSERT(1 + 1 == 2, "holds");
}

}  // namespace
}  // namespace tandem::base
