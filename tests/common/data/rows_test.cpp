#include "common/data/rows.h"

#include <gtest/gtest.h>

#include <set>

#include "common/data/batch_stream.h"
#include "tests/common/data/expect_error.h"
#include "tests/common/data/temporary_folder.h"

namespace tandem::data {
namespace {

using Values = std::vector<std::int32_t>;

// An example: how many tokens stand before the answer, in it, and after it.
struct Example {
  int before = 0;
  int answer = 0;
  int after = 0;
};

class PackedRows : public testing::Test {
 protected:
  // Tokens count up from 1, so that each is known again.
  Dataset make(const std::vector<Example>& examples, bool pairs = false) {
    const auto path = folder_.path() / "examples.h5";
    {
      DatasetWriter writer(path, 65536, true);
      std::uint32_t token = 1;
      for (const Example& example : examples) {
        writer.beginDocument();
        const auto write = [&](int count, std::uint8_t mask) {
          for (int i = 0; i < count; ++i) writer.append(std::vector{token++}, std::vector{mask});
        };
        write(example.before, 0);
        write(example.answer, 1);
        write(example.after, 0);
      }
      writer.finish(
          {.tokenizer = "{}", .tokenizerHash = std::string(32, 'a'), .vocabularySize = 65536, .pairs = pairs});
    }
    return Dataset(path);
  }
  static Batch all(const Rows& rows, std::int64_t sequenceLength) {
    Batch batch(rows.trainingCount(), sequenceLength);
    for (std::int64_t row = 0; row < batch.rows; ++row) rows.fill(batch, row, row);
    return batch;
  }
  static std::multiset<std::int32_t> targetsOf(const Batch& batch) {
    std::multiset<std::int32_t> targets;
    for (const std::int32_t target : batch.targets) {
      if (target != noTarget) targets.insert(target);
    }
    return targets;
  }

  TemporaryFolder folder_;
};

TEST_F(PackedRows, keepPairsTogether) {
  // A pair of which one has no answer; one of which an answer is too long; two that share a row.
  const Dataset dataset = make({{2, 2}, {3, 0}, {1, 9}, {1, 2}, {2, 2}, {2, 1}, {1, 2}, {1, 1}}, true);
  const Rows rows(dataset, 10, false);
  EXPECT_EQ(rows.documentsWithoutTarget(), (std::vector<std::int64_t>{0, 1}));
  EXPECT_EQ(rows.cutDocuments(), (std::vector<std::int64_t>{2}));
  ASSERT_EQ(rows.trainingCount(), 2);
  const Batch batch = all(rows, 10);
  ASSERT_EQ(batch.documents.size(), 6u);
  for (std::size_t i = 0; i < 6; i += 2) {
    const Batch::Document &chosen = batch.documents[i], &rejected = batch.documents[i + 1];
    EXPECT_EQ(chosen.document % 2, 0);
    EXPECT_EQ(rejected.document, chosen.document + 1);
    EXPECT_EQ(rejected.begin, chosen.begin + chosen.count);
    EXPECT_EQ(chosen.begin / 10, (rejected.begin + rejected.count - 1) / 10) << "in one row";
    const std::int64_t first = dataset.documentOffsets()[static_cast<std::size_t>(chosen.document)];
    EXPECT_EQ(batch.tokens[static_cast<std::size_t>(chosen.begin)], first + 1);
  }
  EXPECT_EQ(batch.documents[0].count, 8) << "what the other leaves of a row";
}

TEST_F(PackedRows, leaveOutAndNamePairsThatTheRowsMakeTheSame) {
  const auto path = folder_.path() / "alike.h5";
  {
    DatasetWriter writer(path, 100, true);
    const auto add = [&](const std::vector<std::uint32_t>& tokens, std::uint8_t ofLast = 1) {
      std::vector<std::uint8_t> mask(tokens.size(), 1);
      mask.front() = 0;
      mask.back() = ofLast;
      writer.beginDocument();
      writer.append(tokens, mask);
    };
    add({1, 2, 3}), add({1, 2, 3});                                // alike from the beginning
    add({1, 2, 3, 4, 5, 6, 7, 8}), add({1, 2, 3, 4, 5, 6, 7, 9});  // where both are cut
    add({1, 2, 3}), add({1, 2, 4});                                // in their last token
    add({1, 2, 3, 4, 5, 6, 7, 8}), add({1, 2, 3});                 // of which one goes further
    add({1, 2, 3}, 1), add({1, 2, 3}, 0);                          // in what is learned of them
    writer.finish({.tokenizer = "{}", .tokenizerHash = std::string(32, 'a'), .vocabularySize = 100, .pairs = true});
  }
  const Dataset dataset(path);
  const Rows rows(dataset, 8, false);
  EXPECT_EQ(rows.pairsAlike(), (std::vector<std::int64_t>{0, 1}));
  EXPECT_EQ(all(rows, 8).documents.size(), 6u);
  EXPECT_TRUE(rows.documentsWithoutTarget().empty());
  EXPECT_EQ(Rows(dataset, 32, false).pairsAlike(), std::vector<std::int64_t>{0});
  expectError(base::ErrorKind::badData, {"alike.h5", "no pair of two answers that differ", "rows of 2 tokens"},
              [&] { Rows(dataset, 2, false); });
}

TEST_F(PackedRows, ofPairsNeedBothDocuments) {
  expectError(base::ErrorKind::badData, {"preference_pairs"}, [&] { make({{1, 1}, {1, 1}, {1, 1}}, true); });
}

TEST_F(PackedRows, holdWholeExamplesAndPadding) {
  const Dataset dataset = make({{2, 2, 0}, {1, 2, 0}});  // 1 2 [3 4] and 5 [6 7]
  const Rows rows(dataset, 8, false);
  ASSERT_TRUE(rows.arePacked());
  ASSERT_EQ(rows.trainingCount(), 1);
  const Batch batch = all(rows, 8);
  EXPECT_EQ(batch.tokens, (Values{1, 2, 3, 5, 6, 0, 0, 0}));
  EXPECT_EQ(batch.targets, (Values{-1, 3, 4, 6, 7, -1, -1, -1}));
  EXPECT_EQ(batch.documentStart, (Values{0, 0, 0, 3, 3, 5, 5, 5}));
  EXPECT_EQ(batch.positions, (Values{0, 1, 2, 0, 1, 0, 1, 2}));
  EXPECT_EQ(batch.targetCount, 4);
}

TEST_F(PackedRows, everyAnswerIsLearnedOnceAndTheRowsAreWellFilled) {
  std::vector<Example> examples;
  std::int64_t places = 0, targets = 0;
  for (int i = 0; i < 200; ++i) {
    examples.push_back({1 + i * 7 % 11, 1 + i * 5 % 9, i % 3});
    places += examples.back().before + examples.back().answer + examples.back().after - 1;
    targets += examples.back().answer;
  }
  const Dataset dataset = make(examples);
  const Rows rows(dataset, 32, false);
  const Batch batch = all(rows, 32);
  EXPECT_EQ(batch.targetCount, targets);
  const auto found = targetsOf(batch);
  EXPECT_EQ(std::set<std::int32_t>(found.begin(), found.end()).size(), static_cast<std::size_t>(targets));
  EXPECT_LE(rows.trainingCount(), places / 32 + 3);
  EXPECT_EQ(rows.evaluationCount(), rows.trainingCount());
  // No token looks at another example's: from the start of its document tokens count up.
  for (std::int64_t row = 0; row < batch.rows; ++row) {
    for (std::int64_t t = 0; t < 32; ++t) {
      const auto at = static_cast<std::size_t>(row * 32 + t);
      if (batch.targets[at] == noTarget) continue;
      EXPECT_EQ(batch.targets[at], batch.tokens[at] + 1);
      EXPECT_EQ(batch.tokens[static_cast<std::size_t>(row * 32 + batch.documentStart[at])] + batch.positions[at],
                batch.tokens[at]);
    }
  }
  EXPECT_TRUE(rows.cutDocuments().empty());
}

TEST_F(PackedRows, aLongExampleKeepsItsBeginningWhereThatHasATarget) {
  const Dataset dataset = make({{2, 9, 0}});
  const Rows rows(dataset, 4, false);
  EXPECT_EQ(rows.cutDocuments(), std::vector<std::int64_t>{0});
  const Batch batch = all(rows, 4);
  EXPECT_EQ(batch.tokens, (Values{1, 2, 3, 4}));
  EXPECT_EQ(batch.targets, (Values{-1, 3, 4, 5}));
}

TEST_F(PackedRows, aLongQuestionLosesItsBeginningRatherThanItsAnswer) {
  const Dataset dataset = make({{10, 2, 3}});  // the answer is 11 12
  const Batch batch = all(Rows(dataset, 4, false), 4);
  EXPECT_EQ(batch.tokens, (Values{8, 9, 10, 11}));
  EXPECT_EQ(batch.targets, (Values{-1, -1, 11, 12}));
}

TEST_F(PackedRows, ofALongQuestionWithALongAnswerTheAnswersBeginningStays) {
  const Dataset dataset = make({{10, 20, 0}});
  const Batch batch = all(Rows(dataset, 4, false), 4);
  EXPECT_EQ(batch.targets, (Values{11, 12, 13, 14}));
}

TEST_F(PackedRows, noExampleIsEverLeftWithoutATarget) {
  for (int before = 1; before < 14; ++before) {
    for (int answer = 1; answer < 14; ++answer) {
      for (const int after : {0, 1, 9}) {
        const Dataset dataset = make({{before, answer, after}});
        const Rows rows(dataset, 5, false);
        const Batch batch = all(rows, 5);
        EXPECT_GE(batch.targetCount, 1) << before << " " << answer << " " << after;
        EXPECT_EQ(rows.cutDocuments().size(), before + answer + after > 6 ? 1u : 0u);
      }
    }
  }
}

TEST_F(PackedRows, leaveOutAndNameExamplesWithoutATarget) {
  const Dataset dataset = make({{3, 0, 0}, {2, 1, 0}, {1, 0, 0}, {0, 1, 0}});  // the last one's is its first token
  const Rows rows(dataset, 8, false);
  EXPECT_EQ(rows.documentsWithoutTarget(), (std::vector<std::int64_t>{0, 2, 3}));
  EXPECT_EQ(all(rows, 8).targetCount, 1);
  const Dataset none = make({{3, 0, 0}});
  expectError(base::ErrorKind::badData, {"examples.h5", "no document with a target"}, [&] { Rows(none, 8, false); });
}

TEST_F(PackedRows, trainingAndEvaluationGoThroughThem) {
  const Dataset dataset = make({{2, 3, 0}, {2, 2, 0}, {5, 1, 0}, {1, 4, 0}, {3, 3, 0}});
  const std::vector<WeightedPath> paths = {{dataset.path()}};
  const TrainingData data(paths, {.sequenceLength = 6});
  ASSERT_GT(data.rowCount(), 1);
  std::vector<std::int64_t> epoch(static_cast<std::size_t>(data.rowCount()));
  for (std::size_t i = 0; i < epoch.size(); ++i) epoch[i] = static_cast<std::int64_t>(i);
  const auto trained = targetsOf(data.batch(epoch));
  EXPECT_EQ(trained.size(), 13u);
  EvaluationStream stream(dataset, 6, false, {.rows = 2});
  std::multiset<std::int32_t> evaluated;
  for (std::int64_t i = 0; i < stream.batchCount(); ++i) evaluated.merge(targetsOf(stream.next()));
  EXPECT_EQ(evaluated, trained);
}

TEST_F(PackedRows, acrossDocumentsExamplesArePlainText) {
  const Dataset dataset = make({{2, 2, 0}, {1, 2, 0}});
  const Rows rows(dataset, 3, true);
  EXPECT_FALSE(rows.arePacked());
  EXPECT_EQ(rows.trainingCount(), 2);
}

}  // namespace
}  // namespace tandem::data
