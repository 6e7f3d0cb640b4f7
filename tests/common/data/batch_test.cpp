#include "common/data/batch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <numeric>
#include <set>

#include "common/data/batch_stream.h"
#include "common/tokenizer/train.h"
#include "tests/common/data/expect_error.h"
#include "tests/common/data/make_dataset.h"
#include "tests/common/data/temporary_folder.h"

namespace tandem::data {
namespace {

using base::ErrorKind;
using Values = std::vector<std::int32_t>;

Batch rowOf(const Dataset& dataset, std::int64_t window, std::int64_t sequenceLength, bool crossDocuments = false) {
  Batch batch(1, sequenceLength);
  fillRow(batch, 0, dataset, window, crossDocuments);
  return batch;
}

class Batches : public testing::Test {
 protected:
  // Documents 0 1 2 | 3 4 5 6 7 | 8 | 9 10.
  Batches() { makeCountingDataset(folder_.path() / "d.h5", {3, 5, 1, 2}); }

  TemporaryFolder folder_;
};

TEST_F(Batches, targetsAreTheNextTokensOfTheSameDocument) {
  const Dataset dataset(folder_.path() / "d.h5");
  const Batch first = rowOf(dataset, 0, 4);
  EXPECT_EQ(first.tokens, (Values{0, 1, 2, 3}));
  EXPECT_EQ(first.targets, (Values{1, 2, -1, 4}));  // the last from beyond the window
  EXPECT_EQ(first.documentStart, (Values{0, 0, 0, 3}));
  EXPECT_EQ(first.positions, (Values{0, 1, 2, 0}));
  EXPECT_EQ(first.targetCount, 3);

  const Batch second = rowOf(dataset, 1, 4);  // its document began before
  EXPECT_EQ(second.tokens, (Values{4, 5, 6, 7}));
  EXPECT_EQ(second.targets, (Values{5, 6, 7, -1}));
  EXPECT_EQ(second.documentStart, (Values{0, 0, 0, 0}));
  EXPECT_EQ(second.positions, (Values{0, 1, 2, 3}));
}

TEST_F(Batches, theShortLastWindowIsPaddedWithoutTargets) {
  const Dataset dataset(folder_.path() / "d.h5");
  const Batch last = rowOf(dataset, 2, 4);
  EXPECT_EQ(last.tokens, (Values{8, 9, 10, 0}));
  EXPECT_EQ(last.targets, (Values{-1, 10, -1, -1}));
  EXPECT_EQ(last.documentStart, (Values{0, 1, 1, 3}));
  EXPECT_EQ(last.positions, (Values{0, 0, 1, 0}));
  EXPECT_EQ(last.targetCount, 1);
}

TEST_F(Batches, acrossDocumentsRowsArePlainText) {
  const Dataset dataset(folder_.path() / "d.h5");
  const Batch first = rowOf(dataset, 0, 4, true);
  EXPECT_EQ(first.targets, (Values{1, 2, 3, 4}));
  EXPECT_EQ(first.documentStart, (Values{0, 0, 0, 0}));
  EXPECT_EQ(first.positions, (Values{0, 1, 2, 3}));
  EXPECT_EQ(rowOf(dataset, 2, 4, true).targets, (Values{9, 10, -1, -1}));
}

TEST_F(Batches, theLossMaskTakesTargetsAway) {
  const auto path = folder_.path() / "masked.h5";
  {
    DatasetWriter writer(path, 10, true);
    writer.beginDocument();
    writer.append(std::vector<std::uint32_t>{1, 2, 3, 4, 5}, std::vector<std::uint8_t>{1, 0, 1, 0, 1});
    writer.finish({.tokenizer = "{}", .tokenizerHash = std::string(32, 'a'), .vocabularySize = 10});
  }
  const Batch batch = rowOf(Dataset(path), 0, 4);
  EXPECT_EQ(batch.targets, (Values{-1, 3, -1, 5}));
  EXPECT_EQ(batch.targetCount, 2);
}

TEST_F(Batches, aDatasetShorterThanASequenceIsOnePaddedRow) {
  const std::vector<WeightedPath> paths = {{folder_.path() / "d.h5"}};
  const TrainingData data(paths, {.sequenceLength = 32});
  const std::int64_t samples[] = {0};
  const Batch batch = data.batch(samples);
  EXPECT_EQ(batch.targetCount, 2 + 4 + 0 + 1);
  EXPECT_EQ(data.order()(1).epoch, 1);
}

// Sums over all windows are exact at any sequence length, rank count and batch size.
TEST_F(Batches, evaluationSeesEveryTargetOnceAtAnyRankCountAndBatchSize) {
  std::vector<int> lengths(60);
  for (std::size_t i = 0; i < lengths.size(); ++i) lengths[i] = static_cast<int>(1 + i * 7 % 23);
  makeCountingDataset(folder_.path() / "many.h5", lengths);
  const Dataset dataset(folder_.path() / "many.h5");
  const std::int64_t expected = dataset.tokenCount() - dataset.documentCount();
  for (const std::int64_t sequenceLength : {1, 7, 64, 1000}) {
    for (const std::int64_t ranks : {1, 2, 3}) {
      for (const std::int64_t rows : {1, 4}) {
        std::multiset<std::int32_t> targets;
        for (std::int64_t rank = 0; rank < ranks; ++rank) {
          EvaluationStream stream(dataset, sequenceLength, false, {.rows = rows, .rank = rank, .ranks = ranks});
          for (std::int64_t i = 0; i < stream.batchCount(); ++i) {
            const Batch batch = stream.next();
            for (const std::int32_t target : batch.targets) {
              if (target != noTarget) targets.insert(target);
            }
          }
        }
        EXPECT_EQ(static_cast<std::int64_t>(targets.size()), expected);
        EXPECT_EQ(static_cast<std::int64_t>(std::set(targets.begin(), targets.end()).size()), expected);
      }
    }
  }
}

TEST_F(Batches, evaluationCanBeLimitedToTheFirstWindows) {
  const Dataset dataset(folder_.path() / "d.h5");
  EvaluationStream stream(dataset, 4, false, {.maxWindows = 2});
  ASSERT_EQ(stream.batchCount(), 2);
  EXPECT_EQ(stream.next().tokens.at(0), 0);
  EXPECT_EQ(stream.next().tokens.at(0), 4);
}

TEST_F(Batches, ranksTogetherSeeTheSamplesOfOneRank) {
  makeCountingDataset(folder_.path() / "long.h5", std::vector<int>(40, 11));
  const std::vector<WeightedPath> paths = {{folder_.path() / "long.h5", 3}, {folder_.path() / "d.h5", 1}};
  const TrainingData data(paths, {.sequenceLength = 4, .seed = 5});
  BatchStream whole(data, {.firstSample = 24, .samplesPerStep = 12, .rowBegin = 0, .rows = 12});
  const Batch first = whole.next(), second = whole.next();
  EXPECT_EQ(first.firstSample, 24);
  EXPECT_EQ(second.firstSample, 36);
  for (const std::int64_t ranks : {2, 3}) {
    const std::int64_t rows = 12 / ranks;
    Values together;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const TrainingData own(paths, {.sequenceLength = 4, .seed = 5});
      BatchStream stream(own, {.firstSample = 36, .samplesPerStep = 12, .rowBegin = rank * rows, .rows = rows});
      const Batch part = stream.next();
      together.insert(together.end(), part.tokens.begin(), part.tokens.end());
    }
    EXPECT_EQ(together, second.tokens);
  }
}

TEST_F(Batches, datasetsOfDifferentTokenizersAreNotMixed) {
  makeDataset(folder_.path() / "other.h5", {{1, 2}}, 10, std::string(32, 'b'));
  const std::vector<WeightedPath> paths = {{folder_.path() / "d.h5"}, {folder_.path() / "other.h5"}};
  expectError(ErrorKind::badData, {"d.h5", "other.h5", "different tokenizers"},
              [&] { const TrainingData data(paths, {.sequenceLength = 4}); });
}

TEST_F(Batches, aSequenceHasAtLeastOneToken) {
  const std::vector<WeightedPath> paths = {{folder_.path() / "d.h5"}};
  expectError(ErrorKind::usage, {"sequence length of 0"}, [&] { const TrainingData data(paths, {}); });
}

TEST(WeightedPaths, haveAWeightBehindTheLastColon) {
  EXPECT_EQ(parseWeightedPath("train.h5").path, "train.h5");
  EXPECT_EQ(parseWeightedPath("train.h5").weight, 1.0);
  EXPECT_EQ(parseWeightedPath("train.h5:0.25").path, "train.h5");
  EXPECT_EQ(parseWeightedPath("train.h5:0.25").weight, 0.25);
  EXPECT_EQ(parseWeightedPath("a:b/train.h5").path, "a:b/train.h5");
  for (const char* text :
       {"train.h5:", "train.h5:x", "train.h5:-1", "train.h5:0", "train.h5:inf", "train.h5:1x", ":2"}) {
    expectError(ErrorKind::usage, {text}, [&] { parseWeightedPath(text); });
  }
}

TEST(Prefetcher, makesAtMostItsDepthAheadAndKeepsTheOrder) {
  std::atomic<std::int64_t> made = 0;
  Prefetcher prefetcher(
      [&](std::int64_t number) {
        ++made;
        Batch batch(1, 1);
        batch.firstSample = number;
        return batch;
      },
      -1, 3);
  for (std::int64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(prefetcher.next().firstSample, i);
    EXPECT_LE(made, i + 1 + 3 + 1);  // three wait and one more is in the making
  }
}

TEST(Prefetcher, throwsWhatItsThreadThrewAfterTheBatchesBeforeIt) {
  Prefetcher prefetcher(
      [](std::int64_t number) {
        if (number == 2) throw base::Error(ErrorKind::badData, "damaged");
        return Batch(1, 1);
      },
      -1, 4);
  prefetcher.next();
  prefetcher.next();
  expectError(ErrorKind::badData, {"damaged"}, [&] { prefetcher.next(); });
  expectError(ErrorKind::badData, {"damaged"}, [&] { prefetcher.next(); });
}

TEST(Prefetcher, endsWhileNobodyTakesItsBatches) {
  const Prefetcher prefetcher([](std::int64_t) { return Batch(1, 1); }, -1, 1);
}

TEST(TokenByteLengths, areTheBytesOfTokensAndZeroForSpecialOnes) {
  tokenizer::WordCounts counts;
  counts.add("aaaa", 10);
  const tokenizer::Tokenizer tokenizer =
      learnMerges(counts, {.vocabularySize = 258, .specialTokens = {"<|endoftext|>"}});
  const std::vector<std::int32_t> lengths = tokenByteLengths(tokenizer.json());
  ASSERT_EQ(lengths.size(), 258u);
  EXPECT_EQ(lengths['a'], 1);
  EXPECT_EQ(lengths[256], 2);
  EXPECT_EQ(lengths[257], 0);
}

}  // namespace
}  // namespace tandem::data
