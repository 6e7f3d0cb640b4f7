// Steps in float16 with a loss scale, and with moments in bfloat16, on all ranks alike.

#include <gtest/gtest.h>

#include <cmath>

#include "common/train/model_state.h"
#include "tests/common/train/small_world.h"

namespace tandem::train {
namespace {

constexpr std::int64_t rows = 6, length = 8;  // 6 rows divide by 1, 2 and 3 ranks

// This rank's rows; of the step's rows the first `learning` have targets, one a token, row 0 only `ofFirst` of them.
data::Batch makeBatch(std::int64_t rowsPerRank, std::int64_t learning, std::int64_t ofFirst = length) {
  data::Batch result(rowsPerRank, length);
  for (std::int64_t row = 0; row < rowsPerRank; ++row) {
    const std::int64_t global = test::world().rank() * rowsPerRank + row;
    for (std::int64_t t = 0; t < length; ++t) {
      const auto at = static_cast<std::size_t>(row * length + t);
      const bool learns = global < learning && (global > 0 || t < ofFirst);
      result.tokens[at] = static_cast<std::int32_t>((global * 17 + t * 5) % 256);
      result.positions[at] = static_cast<std::int32_t>(t);
      result.documentStart[at] = 0;
      result.targets[at] = learns ? static_cast<std::int32_t>((global + t) % 256) : data::noTarget;
      result.targetCount += learns ? 1 : 0;
    }
  }
  return result;
}

// A model in training on the ranks of the test.
struct Training {
  explicit Training(TrainOptions given, std::int64_t microBatch = 1) : options(given) {
    options.sequenceLength = length;
    options.batchTokens = rows * length;
    options.microBatch = microBatch;
    shape = shareOut(options, {.data = test::world().size()});
    step = std::make_unique<TrainingStep>(model, options, shape, test::world(), cpu.device());
    initialise(model, 1, step->parameters(), step->optimizer(), cpu.device());
  }

  StepResult run(std::int64_t number, std::int64_t learning = rows, std::int64_t ofFirst = length) {
    return step->run(makeBatch(shape.rowsPerRank, learning, ofFirst), number, 1e-2, 0);
  }
  std::vector<std::byte> weights() const {
    const auto* const begin = static_cast<const std::byte*>(step->parameters().weights());
    return {begin, begin + step->parameters().layout().count() * base::byteSize(options.storage)};
  }

  CpuDevice cpu;
  model::Configuration model = tinyModel();
  TrainOptions options;
  BatchShape shape;
  std::unique_ptr<TrainingStep> step;
};

TrainOptions inFloat16(double scale, std::int64_t growthSteps = 2000) {
  TrainOptions options;
  options.storage = base::DType::f16;
  options.lossScale = {.initial = scale, .growthSteps = growthSteps};
  return options;
}

// A single target, of one rank, whose gradient of 2^24 is beyond float16.
TEST(MixedPrecision, overflowingGradientsSkipTheStepOnAllRanksAndHalveTheScale) {
  Training training(inFloat16(0x1p24));
  const std::vector<std::byte> before = training.weights();
  double scale = 0x1p24;
  StepResult result = training.run(1, 1, 1);
  ASSERT_TRUE(result.skipped);
  for (int number = 2; result.skipped && number < 24; ++number) {
    EXPECT_TRUE(result.overflowed);
    EXPECT_TRUE(std::isfinite(result.loss));
    EXPECT_EQ(result.lossScale, scale);
    EXPECT_EQ(training.weights(), before);
    scale /= 2;
    EXPECT_EQ(training.step->lossScaler()->scale(), scale);
    result = training.run(number, 1, 1);
  }
  EXPECT_FALSE(result.skipped);
  EXPECT_FALSE(result.overflowed);
  EXPECT_NE(training.weights(), before);
}

// Faint embeddings behind a strong norm: the loss is finite, the gradient that the norm passes on is beyond float16.
TEST(MixedPrecision, theSmallestScaleIsNotToBlame) {
  Training training(inFloat16(1));
  optim::Optimizer& optimizer = training.step->optimizer();
  for (const sharding::OwnedRun& run : optimizer.ownedRuns()) {
    const auto& name = training.step->parameters().layout().parameters()[static_cast<std::size_t>(run.parameter)].name;
    float* const master = optimizer.master(run);
    for (std::int64_t i = 0; i < run.count; ++i) {
      if (name == "embedding.weight") master[i] *= 0.01f;
      if (name == "final_norm.weight") master[i] = 15000;
    }
  }
  optimizer.publishMasters();
  const StepResult result = training.run(1, 1, 1);
  EXPECT_TRUE(std::isfinite(result.loss));
  EXPECT_FALSE(std::isfinite(result.gradientNorm));
  EXPECT_TRUE(result.skipped);
  EXPECT_FALSE(result.overflowed) << "so it counts as a bad step";
  EXPECT_EQ(training.step->lossScaler()->scale(), 1);
}

TEST(MixedPrecision, aLossThatIsNoNumberLeavesTheScale) {
  Training training(inFloat16(0x1p16));
  auto* const weights = static_cast<base::BFloat16*>(training.step->parameters().weights());
  weights[0].bits = 0x7e00;  // NaN of float16 in the first word's embedding
  const StepResult result = training.run(1);
  EXPECT_TRUE(result.skipped);
  EXPECT_FALSE(result.overflowed);
  EXPECT_EQ(training.step->lossScaler()->scale(), 0x1p16);
}

TEST(MixedPrecision, theScaleGrowsAfterGoodSteps) {
  Training training(inFloat16(64, 2));
  const std::vector<double> expected = {64, 64, 128, 128, 256};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(training.run(static_cast<std::int64_t>(i) + 1).lossScale, expected[i]);
  }
}

// The norm is told, and clipped, as it is without a scale; and a scale, being a power of two, changes no bit where
// nothing overflows or fades.
TEST(MixedPrecision, theScaleShowsInNothingButItself) {
  TrainOptions single;
  single.clipNorm = 0.1;
  Training exact(single);
  const StepResult wanted = exact.run(1);
  EXPECT_EQ(wanted.lossScale, std::nullopt);
  std::vector<std::vector<std::byte>> weights;
  for (const double scale : {1024.0, 4096.0}) {
    TrainOptions options = inFloat16(scale);
    options.clipNorm = 0.1;
    Training training(options);
    const StepResult result = training.run(1);
    EXPECT_NEAR(result.loss, wanted.loss, 1e-3 * wanted.loss);
    EXPECT_GT(result.gradientNorm, options.clipNorm);
    EXPECT_NEAR(result.gradientNorm, wanted.gradientNorm, 1e-2 * wanted.gradientNorm);
    weights.push_back(training.weights());
  }
  std::size_t differing = 0;
  for (std::size_t i = 0; i < weights[0].size(); ++i) differing += weights[0][i] != weights[1][i] ? 1u : 0u;
  EXPECT_LT(differing, weights[0].size() / 100);
}

// Masters after two steps, by their place in the flat buffer, which does not depend on the stage.
std::vector<float> mastersOf(int zero, base::DType storage) {
  const int ranks = test::world().size();
  TrainOptions options;
  options.storage = storage;
  options.cudaGraphs = true;
  options.grid = sharding::Grid{.data = ranks, .zero = zero};
  Training training(options, rows / ranks);
  for (std::int64_t step = 1; step <= 2; ++step) training.run(step);
  const sharding::FlatLayout& layout = training.step->parameters().layout();
  std::vector<float> masters(static_cast<std::size_t>(layout.count()));
  for (const sharding::OwnedRun& run : training.step->optimizer().countedRuns()) {
    const std::int64_t begin = layout.parameters()[static_cast<std::size_t>(run.parameter)].offset + run.begin;
    std::copy_n(training.step->optimizer().master(run), run.count, masters.begin() + begin);
  }
  test::world().allReduce({masters.data(), base::DType::f32, std::ssize(masters)});
  return masters;
}

TEST(MixedPrecision, allStagesOfZeroGiveTheSameBits) {
  for (const base::DType storage : {base::DType::f32, base::DType::bf16, base::DType::f16}) {
    const std::vector<float> expected = mastersOf(1, storage);
    EXPECT_EQ(mastersOf(2, storage), expected) << base::name(storage);
    EXPECT_EQ(mastersOf(3, storage), expected) << base::name(storage);
  }
}

TEST(MixedPrecision, momentsInBfloat16LearnAsThoseInFloat32) {
  TrainOptions low;
  low.optimizer.states = base::DType::bf16;
  Training exact({}), rounded(low);
  for (int number = 1; number <= 30; ++number) {
    const double wanted = exact.run(number).loss, got = rounded.run(number).loss;
    EXPECT_NEAR(got, wanted, 0.02 * wanted + 0.01) << "step " << number;
  }
}

TEST(MixedPrecision, momentsInBfloat16AreSavedAsSuch) {
  TrainOptions low;
  low.optimizer.states = base::DType::bf16;
  Training training(low);
  for (const checkpoint::LocalTensor& tensor : localTensors(training.step->parameters(), training.step->optimizer())) {
    EXPECT_EQ(tensor.type, tensor.name.starts_with("model/") ? base::DType::f32 : base::DType::bf16) << tensor.name;
  }
}

}  // namespace
}  // namespace tandem::train
