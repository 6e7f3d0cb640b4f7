// The loss over a dataset: every target once, the same at any rank count and batch.

#include "common/train/loss_evaluator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "common/model/transformer.h"
#include "common/sharding/rank_program.h"
#include "common/train/model_state.h"
#include "tests/common/data/expect_error.h"
#include "tests/common/train/small_world.h"

namespace tandem::train {
namespace {

using runtime::ParameterStore;

class LossEvaluation : public testing::Test {
 protected:
  LossEvaluation() : store_(makeStore()) {}

  std::unique_ptr<ParameterStore> makeStore() {
    const graph::Program program = model::buildLogits(model_, 1, 1, base::DType::f32);
    auto store = std::make_unique<ParameterStore>(
        sharding::layoutOf(program, 1, sharding::FlatLayout::Ownership::anywhere), *cpu_.backend, *cpu_.stream,
        base::DType::f32, ParameterStore::Gradients::none);
    for (const sharding::FlatParameter& parameter : store->layout().parameters()) {
      float* const values = static_cast<float*>(store->weightAt(parameter.offset));
      model::initialise(model_, parameter.name, 3, 0, std::span(values, static_cast<std::size_t>(parameter.count)));
    }
    return store;
  }

  EvaluationResult evaluate(const std::filesystem::path& path, std::int64_t rows, std::int64_t maxTokens = 0,
                            bool crossDocuments = false) {
    const data::Dataset dataset(path);
    return LossEvaluator(model_, *store_, rows, 16, cpu_.device())
        .evaluate(dataset, crossDocuments, maxTokens, test::world());
  }

  data::TemporaryFolder folder_;
  CpuDevice cpu_;
  model::Configuration model_ = tinyModel();
  std::unique_ptr<ParameterStore> store_;
};

const std::vector<std::string> texts = {"A first text that is longer than a window of sixteen tokens.", "b", "",
                                        "Another one, \xc3\xa4\xc3\xb6\xc3\xbc."};

TEST_F(LossEvaluation, countsEveryTargetAndItsBytesOnce) {
  const EvaluationResult result = evaluate(makeTextDataset(folder_, texts), 2);
  std::int64_t bytes = 0;
  for (const std::string& text : texts) bytes += static_cast<std::int64_t>(text.size());
  EXPECT_EQ(result.targets, bytes + static_cast<std::int64_t>(texts.size())) << "each document's end token is one";
  EXPECT_EQ(result.targetBytes, bytes);
}

TEST_F(LossEvaluation, anUntrainedModelLosesTheLogarithmOfItsVocabulary) {
  const EvaluationResult result = evaluate(makeTextDataset(folder_, texts), 2);
  EXPECT_NEAR(result.loss, std::log(260.0), 0.02);
  EXPECT_NEAR(
      result.bitsPerByte,
      result.loss * static_cast<double>(result.targets) / (std::numbers::ln2 * static_cast<double>(result.targetBytes)),
      1e-12);
}

TEST_F(LossEvaluation, isTheSameAtAnyBatch) {
  const std::filesystem::path path = makeTextDataset(folder_, texts);
  const EvaluationResult one = evaluate(path, 1);
  for (const std::int64_t rows : {2, 3, 7, 50}) {
    const EvaluationResult result = evaluate(path, rows);
    EXPECT_EQ(result.targets, one.targets);
    EXPECT_NEAR(result.loss, one.loss, 1e-6 * one.loss);
  }
}

TEST_F(LossEvaluation, isTheSameOfWeightsThatTheRanksShareOut) {
  const data::Dataset dataset(makeTextDataset(folder_, texts));
  std::vector<double> losses;
  for (const int zero : {1, 3}) {
    TrainOptions options;
    options.sequenceLength = 16;
    options.batchTokens = 16 * test::world().size();
    options.grid = sharding::Grid{.data = test::world().size(), .zero = zero};
    TrainingStep step(model_, options, shareOut(options, {.data = test::world().size()}), test::world(), cpu_.device());
    initialise(model_, 3, step.parameters(), step.optimizer(), cpu_.device());
    EXPECT_EQ(step.parameters().sharesWeights(), zero == 3 && test::world().size() > 1);
    losses.push_back(LossEvaluator(model_, step.parameters(), 2, 16, cpu_.device(), &step.groups())
                         .evaluate(dataset, false, 0, test::world())
                         .loss);
  }
  EXPECT_EQ(losses[0], losses[1]);
}

TEST_F(LossEvaluation, isTheSameAtAnyRankCount) {
  const std::filesystem::path path = makeTextDataset(folder_, texts);
  const data::Dataset dataset(path);
  const auto alone = comm::makeSingleProcess();
  LossEvaluator evaluator(model_, *store_, 2, 16, cpu_.device());
  const EvaluationResult expected = evaluator.evaluate(dataset, false, 0, *alone);
  const EvaluationResult result = evaluator.evaluate(dataset, false, 0, test::world());
  EXPECT_EQ(result.targets, expected.targets);
  EXPECT_NEAR(result.loss, expected.loss, 1e-6 * expected.loss);
  EXPECT_NEAR(result.bitsPerByte, expected.bitsPerByte, 1e-6 * expected.bitsPerByte);
}

TEST_F(LossEvaluation, takesTheFirstTokensOnlyWhenAsked) {
  const std::filesystem::path path = makeTextDataset(folder_, texts);
  EXPECT_EQ(evaluate(path, 1, 32).targets, 32);
  EXPECT_EQ(evaluate(path, 3, 17).targets, 32) << "whole windows";
}

TEST_F(LossEvaluation, acrossDocumentsEveryTokenButTheFirstIsATarget) {
  const std::filesystem::path path = makeTextDataset(folder_, texts);
  EXPECT_EQ(evaluate(path, 2, 0, true).targets, data::Dataset(path).tokenCount() - 1);
}

TEST_F(LossEvaluation, targetsWithoutBytesGiveNoBitsPerByte) {
  const EvaluationResult result = evaluate(makeTextDataset(folder_, {"", ""}), 2);
  EXPECT_EQ(result.targets, 2);
  EXPECT_EQ(result.targetBytes, 0);
  EXPECT_EQ(result.bitsPerByte, 0);
  EXPECT_GT(result.loss, 0);
}

TEST_F(LossEvaluation, aLossThatIsNoNumberIsToldAsSuchOnEveryRank) {
  static_cast<float*>(store_->weights())['e' * model_.width] = NAN;  // of a token that the texts hold
  EXPECT_TRUE(std::isnan(evaluate(makeTextDataset(folder_, texts), 2).loss));
}

TEST_F(LossEvaluation, aVocabularyBeyondTheTokenizersIsBadData) {
  const std::filesystem::path path = makeTextDataset(folder_, texts, 300);
  data::expectError(base::ErrorKind::badData, {path.string(), "300", "257"}, [&] { evaluate(path, 1); });
}

}  // namespace
}  // namespace tandem::train
