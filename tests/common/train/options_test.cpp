// How the tokens of a step are shared out, and what is said when they cannot be.

#include "common/train/options.h"

#include <gtest/gtest.h>

#include "tests/common/data/expect_error.h"

namespace tandem::train {
namespace {

TrainOptions options(std::int64_t batchTokens, std::int64_t sequenceLength, std::int64_t microBatch = 0) {
  TrainOptions result;
  result.batchTokens = batchTokens;
  result.sequenceLength = sequenceLength;
  result.microBatch = microBatch;
  return result;
}

TEST(ShareOut, sharesRowsOverRanksAndMicroBatches) {
  const BatchShape shape = shareOut(options(24 * 128, 128, 2), 3);
  EXPECT_EQ(shape.rows, 24);
  EXPECT_EQ(shape.rowsPerRank, 8);
  EXPECT_EQ(shape.microBatch, 2);
  EXPECT_EQ(shape.microBatches, 4);
}

TEST(ShareOut, choosesTheLargestMicroBatchThatDividesAndIsNotTooLarge) {
  EXPECT_EQ(shareOut(options(12 * 128, 128), 1).microBatch, 12);
  EXPECT_EQ(shareOut(options(12 * 256, 256), 1).microBatch, 6) << "at most 2048 tokens, and a divisor of 12";
  EXPECT_EQ(shareOut(options(7 * 1024, 1024), 1).microBatch, 1);
  EXPECT_EQ(shareOut(options(4 * 8192, 8192), 2).microBatch, 1) << "one row may be longer";
}

TEST(ShareOut, namesTheNearestPossibleBatches) {
  data::expectError(base::ErrorKind::usage,
                    {"--batch-tokens 1000", "rows of 128", "2 ranks", "multiples of 256", "768 or 1024"},
                    [] { shareOut(options(1000, 128), 2); });
  data::expectError(base::ErrorKind::usage, {"multiples of 384", "such as 384"},
                    [] { shareOut(options(100, 128), 3); });
}

TEST(ShareOut, namesThePossibleMicroBatches) {
  data::expectError(base::ErrorKind::usage, {"--micro-batch 4", "6 rows", "1, 2, 3, 6"},
                    [] { shareOut(options(12 * 128, 128, 4), 2); });
  data::expectError(base::ErrorKind::usage, {"--micro-batch 13"}, [] { shareOut(options(12 * 128, 128, 13), 1); });
}

}  // namespace
}  // namespace tandem::train
