#include "common/base/log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "common/base/error.h"
#include "common/base/files.h"
#include "tests/run_program.h"

namespace tandem::base {
namespace {

class Log : public testing::Test {
 protected:
  void TearDown() override { setIdentity(before_); }

  // What is written on stderr when a process of this rank logs.
  std::string written(int rank, LogLevel level, const std::function<void()>& work) {
    setIdentity({.rank = rank, .ranks = 4, .host = "here"});
    testing::internal::CaptureStderr();
    startLogging(level);
    work();
    return testing::internal::GetCapturedStderr();
  }

 private:
  Identity before_ = identity();
};

TEST_F(Log, aRecordIsOneLineWithTimeLevelAndRank) {
  const std::string text = written(0, LogLevel::info, [] { TANDEM_LOG(info) << "loss " << 3.5; });
  ASSERT_EQ(text.size(), std::string("12:00:00 info [0] loss 3.5\n").size()) << text;
  EXPECT_EQ(text.substr(8), " info [0] loss 3.5\n");
  EXPECT_EQ(text[2], ':');
}

TEST_F(Log, linesOfATableAreIndentedUnderTheirRecord) {
  const std::string text = written(0, LogLevel::info, [] { TANDEM_LOG(warning) << "table\na 1\nb 2\n"; });
  EXPECT_TRUE(text.ends_with(" warning [0] table\n    a 1\n    b 2\n")) << text;
}

TEST_F(Log, onlyRankZeroSpeaksUnlessAllAreAsked) {
  const std::string text = written(2, LogLevel::info, [] {
    TANDEM_LOG(error) << "not me";
    TANDEM_LOG_ALL(info) << "I must say";
  });
  EXPECT_EQ(text.find("not me"), std::string::npos);
  EXPECT_TRUE(text.ends_with(" info [2] I must say\n")) << text;
}

TEST_F(Log, lessSevereRecordsAreLeftOut) {
  const std::string text = written(0, LogLevel::warning, [] {
    TANDEM_LOG(debug) << "a";
    TANDEM_LOG(info) << "b";
    TANDEM_LOG(warning) << "c";
    TANDEM_LOG(error) << "d";
  });
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;
}

TEST_F(Log, recordsGoToAFileToo) {
  const test::TemporaryFolder folder;
  written(1, LogLevel::info, [&] {
    logToFile(folder.path() / "log");
    TANDEM_LOG_ALL(info) << "kept";
  });
  EXPECT_TRUE(readFile(folder.path() / "log").ends_with(" info [1] kept\n"));
  EXPECT_THROW(logToFile(folder.path() / "no" / "log"), Error);
}

TEST_F(Log, anUnknownLevelIsAUsageError) {
  EXPECT_EQ(parseLogLevel("debug"), LogLevel::debug);
  EXPECT_EQ(parseLogLevel("error"), LogLevel::error);
  try {
    parseLogLevel("loud");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
  }
}

}  // namespace
}  // namespace tandem::base
