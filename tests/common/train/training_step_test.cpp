// A step of all ranks together: normalised by all targets, skipped by all at once, told flags by any.

#include "common/train/training_step.h"

#include <gtest/gtest.h>

#include <cmath>

#include "common/train/model_state.h"
#include "tests/common/train/small_world.h"

namespace tandem::train {
namespace {

constexpr std::int64_t rows = 6, length = 8;  // 6 rows divide by 1, 2 and 3 ranks

class Step : public testing::Test {
 protected:
  Step() {
    options_.sequenceLength = length;
    options_.batchTokens = rows * length;
    options_.microBatch = 1;
    shape_ = shareOut(options_, {.data = test::world().size()});
    step_ = std::make_unique<TrainingStep>(model_, options_, shape_, test::world(), cpu_.device());
    initialise(model_, 1, step_->parameters(), step_->optimizer(), cpu_.device());
  }

  // This rank's rows; row r of the step has r + 1 targets, or none.
  data::Batch batch(bool withTargets = true) const {
    data::Batch result(shape_.rowsPerRank, length);
    for (std::int64_t row = 0; row < shape_.rowsPerRank; ++row) {
      const std::int64_t global = test::world().rank() * shape_.rowsPerRank + row;
      for (std::int64_t t = 0; t < length; ++t) {
        const auto at = static_cast<std::size_t>(row * length + t);
        result.tokens[at] = static_cast<std::int32_t>((global * 17 + t * 5) % 256);
        result.positions[at] = static_cast<std::int32_t>(t);
        result.documentStart[at] = 0;
        result.targets[at] =
            withTargets && t <= global ? static_cast<std::int32_t>((global + t) % 256) : data::noTarget;
        result.targetCount += result.targets[at] != data::noTarget ? 1 : 0;
      }
    }
    return result;
  }

  std::vector<float> weights() {
    const float* const all = static_cast<const float*>(step_->parameters().weights());
    return {all, all + step_->parameters().layout().count()};
  }

  CpuDevice cpu_;
  model::Configuration model_ = tinyModel();
  TrainOptions options_;
  BatchShape shape_;
  std::unique_ptr<TrainingStep> step_;
};

TEST_F(Step, lossIsTheMeanOverTheTargetsOfAllRanks) {
  const StepResult result = step_->run(batch(), 1, 1e-3, 0);
  EXPECT_EQ(result.targets, 1 + 2 + 3 + 4 + 5 + 6);
  EXPECT_NEAR(result.loss, std::log(260.0), 0.02);
  EXPECT_FALSE(result.skipped);
  EXPECT_GT(result.gradientNorm, 0);
}

TEST_F(Step, lossFallsOverSteps) {
  const double before = step_->run(batch(), 1, 1e-2, 0).loss;
  for (int number = 2; number <= 30; ++number) step_->run(batch(), number, 1e-2, 0);
  EXPECT_LT(step_->run(batch(), 31, 1e-2, 0).loss, 0.5 * before);
}

TEST_F(Step, allRanksComputeWithTheSameWeightsAfterwards) {
  step_->run(batch(), 1, 1e-2, 0);
  std::vector<float> first = weights();
  const std::vector<float> own = first;
  test::world().broadcast({first.data(), base::DType::f32, static_cast<std::int64_t>(first.size())}, 0);
  EXPECT_EQ(own, first);
}

// The weights after some steps, with buckets so small that several are under way at once.
TEST_F(Step, exchangesBesideComputingChangeNoBit) {
  options_.bucketElements = 100;
  for (const int zero : {0, 1, 2, 3}) {
    if (zero != 1 && test::world().size() == 1) continue;
    options_.grid = sharding::Grid{.data = test::world().size(), .zero = zero};
    std::vector<std::vector<float>> masters;
    for (const bool overlap : {true, false}) {
      options_.overlap = overlap;
      TrainingStep step(model_, options_, shape_, test::world(), cpu_.device());
      initialise(model_, 1, step.parameters(), step.optimizer(), cpu_.device());
      for (int number = 1; number <= 3; ++number) {
        const StepResult result = step.run(batch(), number, 1e-2, 0);
        EXPECT_GE(result.computeSeconds, 0);
        EXPECT_GE(result.communicationSeconds, 0);
      }
      step.settle();
      std::vector<float>& own = masters.emplace_back();
      for (const sharding::OwnedRun& run : step.optimizer().ownedRuns()) {
        own.insert(own.end(), step.optimizer().master(run), step.optimizer().master(run) + run.count);
      }
    }
    EXPECT_EQ(masters[0], masters[1]) << "zero=" << zero;
  }
}

TEST_F(Step, aBadValueOnOneRankSkipsTheStepOnAllAndChangesNothing) {
  step_->run(batch(), 1, 1e-2, 0);
  const std::vector<float> before = weights();
  // The last rank alone computes with a damaged weight.
  const bool isLast = test::world().rank() == test::world().size() - 1;
  float* const damaged = static_cast<float*>(
      step_->parameters().weightAt(step_->parameters().layout().parameters()[0].offset + (17 * 5 % 256) * 16));
  const float good = *damaged;
  if (isLast) *damaged = NAN;
  data::Batch bad = batch();
  bad.tokens[0] = 17 * 5 % 256;
  const StepResult result = step_->run(bad, 2, 1e-2, 0);
  *damaged = good;
  EXPECT_TRUE(result.skipped);
  EXPECT_EQ(weights(), before);
  EXPECT_FALSE(step_->run(batch(), 3, 1e-2, 0).skipped) << "and the next step is a good one again";
}

TEST_F(Step, flagsOfAnyRankReachAll) {
  const bool isLast = test::world().rank() == test::world().size() - 1;
  EXPECT_EQ(step_->run(batch(), 1, 1e-3, isLast ? stopRequested : 0).raised, stopRequested);
  EXPECT_EQ(step_->run(batch(), 2, 1e-3, isLast ? saveFailed : 0).raised, saveFailed);
  EXPECT_EQ(step_->run(batch(), 3, 1e-3, 0).raised, 0);
}

TEST_F(Step, aStepWithoutTargetsIsNoDivisionByZero) {
  const StepResult result = step_->run(batch(false), 1, 1e-3, 0);
  EXPECT_EQ(result.targets, 0);
  EXPECT_EQ(result.loss, 0);
  EXPECT_EQ(result.gradientNorm, 0);
  EXPECT_FALSE(result.skipped);
}

TEST_F(Step, clippingBoundsTheUpdateNotTheNormThatIsTold) {
  const double norm = step_->run(batch(), 1, 0.0, 0).gradientNorm;
  options_.clipNorm = norm / 100;
  EXPECT_NEAR(step_->run(batch(), 1, 0.0, 0).gradientNorm, norm, 1e-6 * norm);
}

TEST_F(Step, aStatesTensorsCoverTheModelAndItsMoments) {
  const auto tensors = localTensors(step_->parameters(), step_->optimizer());
  EXPECT_EQ(tensors.size(), 3 * step_->parameters().layout().parameters().size());
  std::int64_t own = 0, whole = 0;
  for (const checkpoint::LocalTensor& tensor : tensors) {
    EXPECT_TRUE(tensor.name.starts_with("model/") || tensor.name.starts_with("optimizer/first_moment/") ||
                tensor.name.starts_with("optimizer/second_moment/"))
        << tensor.name;
    whole += tensor.shape.count();
    for (const checkpoint::Piece& piece : tensor.pieces) own += piece.count;
  }
  EXPECT_EQ(comm::allReduceScalar(test::world(), own), whole);
}

TEST(ParameterTraits, matricesDecayVectorsDoNotAndMuonTakesTheLayersMatrices) {
  const model::Configuration model = tinyModel();
  const graph::Program program = lossProgram(model, 1, 8, base::DType::f32);
  const auto layout = sharding::layoutOf(program, 1, sharding::FlatLayout::Ownership::wholeParameters);
  const auto adamw = parameterTraits(model, layout, optim::Method::adamw);
  const auto muon = parameterTraits(model, layout, optim::Method::muon);
  for (std::size_t i = 0; i < adamw.size(); ++i) {
    const sharding::FlatParameter& parameter = layout.parameters()[i];
    const bool isMatrix = parameter.shape.rank() == 2;
    EXPECT_EQ(adamw[i].decays, isMatrix) << parameter.name;
    EXPECT_FALSE(adamw[i].usesMuon);
    EXPECT_EQ(muon[i].usesMuon, isMatrix && parameter.name.starts_with("layers.")) << parameter.name;
  }
  auto blocks = [&](const std::string& name) { return muon[static_cast<std::size_t>(layout.indexOf(name))].rowBlocks; };
  EXPECT_EQ(blocks("layers.0.attention.qkv.weight"), (std::vector<std::int64_t>{16, 16, 16}));
  EXPECT_EQ(blocks("layers.0.mlp.gate_up.weight"), (std::vector<std::int64_t>{24, 24}));
  EXPECT_EQ(blocks("layers.0.mlp.down.weight"), (std::vector<std::int64_t>{16}));
}

TEST(ParameterTraits, muonTakesWhatFusedProjectionsShareOfAnAdapterWholeAndTheirRowsOfItApart) {
  const model::Configuration model = tinyModel();
  const graph::Program program = lossProgram(model, 1, 8, base::DType::f32, AdapterOptions{.rank = 4});
  const auto layout = sharding::layoutOf(program, 1, sharding::FlatLayout::Ownership::wholeParameters);
  const auto muon = parameterTraits(model, layout, optim::Method::muon);
  auto blocks = [&](const std::string& name) { return muon[static_cast<std::size_t>(layout.indexOf(name))].rowBlocks; };
  EXPECT_EQ(blocks("layers.0.attention.qkv.lora_a"), (std::vector<std::int64_t>{4}));
  EXPECT_EQ(blocks("layers.0.attention.qkv.lora_b"), (std::vector<std::int64_t>{16, 16, 16}));
  EXPECT_EQ(blocks("layers.0.mlp.gate_up.lora_a"), (std::vector<std::int64_t>{4}));
  EXPECT_EQ(blocks("layers.0.mlp.gate_up.lora_b"), (std::vector<std::int64_t>{24, 24}));
  EXPECT_EQ(blocks("layers.0.mlp.down.lora_a"), (std::vector<std::int64_t>{4}));
  EXPECT_EQ(blocks("layers.0.mlp.down.lora_b"), (std::vector<std::int64_t>{16}));
}

// They are no matrix, and a length that decayed would shrink the frozen weight.
TEST(ParameterTraits, whatLengthsGainIsLeftToAdamWAndDoesNotDecay) {
  const model::Configuration model = tinyModel();
  const graph::Program program =
      lossProgram(model, 1, 8, base::DType::f32, AdapterOptions{.rank = 4, .decomposed = true});
  const auto layout = sharding::layoutOf(program, 1, sharding::FlatLayout::Ownership::wholeParameters);
  for (const optim::Method method : {optim::Method::adamw, optim::Method::muon}) {
    const auto traits = parameterTraits(model, layout, method);
    const auto& gain = traits[static_cast<std::size_t>(layout.indexOf("layers.0.attention.qkv.lora_m"))];
    EXPECT_FALSE(gain.usesMuon);
    EXPECT_FALSE(gain.decays);
  }
}

}  // namespace
}  // namespace tandem::train
