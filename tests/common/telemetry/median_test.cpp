#include "common/telemetry/median.h"

#include <gtest/gtest.h>

namespace tandem::telemetry {
namespace {

TEST(Median, isTheMiddleOrTheMeanOfBothMiddleOnes) {
  EXPECT_EQ(median({7}), 7);
  EXPECT_EQ(median({9, 1, 5}), 5);
  EXPECT_EQ(median({8, 1}), 4.5);
  EXPECT_EQ(median({4, 100, 2, 1, 3, -50}), 2.5);
}

}  // namespace
}  // namespace tandem::telemetry
