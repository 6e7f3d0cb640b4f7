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
  const BatchShape shape = shareOut(options(24 * 128, 128, 2), {.data = 3});
  EXPECT_EQ(shape.rows, 24);
  EXPECT_EQ(shape.rowsPerRank, 8);
  EXPECT_EQ(shape.microBatch, 2);
  EXPECT_EQ(shape.microBatches, 4);
}

TEST(ShareOut, choosesTheLargestMicroBatchThatDividesAndIsNotTooLarge) {
  EXPECT_EQ(shareOut(options(12 * 128, 128), {.data = 1}).microBatch, 12);
  EXPECT_EQ(shareOut(options(12 * 256, 256), {.data = 1}).microBatch, 6) << "at most 2048 tokens, and a divisor of 12";
  EXPECT_EQ(shareOut(options(7 * 1024, 1024), {.data = 1}).microBatch, 1);
  EXPECT_EQ(shareOut(options(4 * 8192, 8192), {.data = 2}).microBatch, 1) << "one row may be longer";
}

TEST(ShareOut, namesTheNearestPossibleBatches) {
  data::expectError(base::ErrorKind::usage,
                    {"--batch-tokens 1000", "rows of 128", "2 ranks", "multiples of 256", "768 or 1024"},
                    [] { shareOut(options(1000, 128), {.data = 2}); });
  data::expectError(base::ErrorKind::usage, {"multiples of 384", "such as 384"},
                    [] { shareOut(options(100, 128), {.data = 3}); });
}

TEST(ShareOut, givesInterleavedStagesAMultipleOfTheirRanksOfMicroBatches) {
  const sharding::Grid grid{.pipeline = 4, .data = 2, .virtualStages = 2};
  const BatchShape shape = shareOut(options(48 * 256, 256), grid);
  EXPECT_EQ(shape.microBatch, 6);
  EXPECT_EQ(shape.microBatches, 4);
  data::expectError(
      base::ErrorKind::usage,
      {"--micro-batch 4", "24 rows of a rank into groups of 4 micro batches", "vp=2 on pp=4", "1, 2, 3, 6"},
      [&] { shareOut(options(48 * 256, 256, 4), grid); });
  data::expectError(base::ErrorKind::usage, {"into groups of 4 micro batches", "multiples of 2048", "10240 or 12288"},
                    [&] { shareOut(options(44 * 256, 256), grid); });
}

TEST(ShareOut, namesThePossibleMicroBatches) {
  data::expectError(base::ErrorKind::usage, {"--micro-batch 4", "6 rows", "1, 2, 3, 6"},
                    [] { shareOut(options(12 * 128, 128, 4), {.data = 2}); });
  data::expectError(base::ErrorKind::usage, {"--micro-batch 13"},
                    [] { shareOut(options(12 * 128, 128, 13), {.data = 1}); });
}

}  // namespace
}  // namespace tandem::train
