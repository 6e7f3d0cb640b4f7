#include "common/base/units.h"

#include <gtest/gtest.h>

#include "common/base/error.h"

namespace tandem::base {
namespace {

TEST(Units, durationsAreReadWithTheirUnit) {
  EXPECT_EQ(parseDuration("90s").count(), 90);
  EXPECT_EQ(parseDuration("30m").count(), 1800);
  EXPECT_EQ(parseDuration("2h").count(), 7200);
  EXPECT_EQ(parseDuration("1d").count(), 86400);
  EXPECT_EQ(parseDuration("45").count(), 45);
  EXPECT_EQ(parseDuration("0").count(), 0);
}

TEST(Units, whatIsNoDurationIsAUsageErrorThatQuotesIt) {
  for (const char* text : {"", "s", "-5s", "1.5h", "10 s", "10x", "10mm", "99999999999999999999s", "9999999999d"}) {
    try {
      parseDuration(text);
      ADD_FAILURE() << "accepted: " << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      EXPECT_NE(error.message().find("'" + std::string(text) + "'"), std::string::npos);
    }
  }
}

TEST(Units, durationsAreWrittenInTheirLargestUnits) {
  EXPECT_EQ(formatDuration(4.2), "4.2 s");
  EXPECT_EQ(formatDuration(200), "3m 20s");
  EXPECT_EQ(formatDuration(7500), "2h 05m");
  EXPECT_EQ(formatDuration(60), "1m 00s");
  EXPECT_EQ(formatDuration(3600), "1h 00m");
}

TEST(Units, bytesAndCountsAreScaled) {
  EXPECT_EQ(formatBytes(0), "0 B");
  EXPECT_EQ(formatBytes(1023), "1023 B");
  EXPECT_EQ(formatBytes(1536), "1.5 KiB");
  EXPECT_EQ(formatBytes(std::int64_t{3} << 30), "3.0 GiB");
  EXPECT_EQ(formatCount(999), "999");
  EXPECT_EQ(formatCount(124.4e6), "124.4 M");
  EXPECT_EQ(formatCount(3e9), "3.0 B");
  EXPECT_EQ(formatFlops(15.2e9), "15.2 GFLOP");
}

}  // namespace
}  // namespace tandem::base
