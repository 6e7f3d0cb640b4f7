#include "apps/shared/progress.h"

#include <gtest/gtest.h>

#include "common/base/log.h"

namespace tandem::test {
namespace {

using app::Progress;

// What the progress of 3 of 12 MiB writes on stderr.
std::string written(Progress::Style style) {
  testing::internal::CaptureStderr();
  base::startLogging(base::LogLevel::info);
  {
    Progress progress("encoding", 12 << 20, "B", style);
    progress.update(1 << 20);
    progress.update(3 << 20, "loss 3.21");
    progress.finish();
  }
  return testing::internal::GetCapturedStderr();
}

TEST(Progress, isAPlainLineOutsideATerminal) {
  const std::string text = written(Progress::Style::detect);  // stderr is a file here
  EXPECT_NE(text.find("info [0] encoding: 3.0 MiB of 12.0 MiB (25 %), "), std::string::npos) << text;
  EXPECT_NE(text.find(", loss 3.21\n"), std::string::npos) << text;
  EXPECT_EQ(text.find('\r'), std::string::npos);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
}

TEST(Progress, isABarThatRedrawsItselfOnATerminal) {
  const std::string text = written(Progress::Style::bar);
  EXPECT_NE(text.find("\rencoding: [######..................] 3.0 MiB of 12.0 MiB (25 %), "), std::string::npos)
      << text;
  EXPECT_TRUE(text.ends_with("\n"));
}

}  // namespace
}  // namespace tandem::test
