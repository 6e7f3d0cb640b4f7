// 8-bit linear layers in training steps: near bfloat16's, the same on any number of ranks, resumed exactly.
#include <gtest/gtest.h>

#include <cmath>

#include "common/train/fp8_scaling.h"
#include "common/train/model_state.h"
#include "tests/common/train/small_world.h"

namespace tandem::train {
namespace {

constexpr std::int64_t rows = 6, length = 16;  // 6 rows divide by 1, 2 and 3 ranks

model::Configuration model() {
  return model::parseConfiguration(R"({"model_type": "llama", "vocab_size": 260, "hidden_size": 32,
    "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48, "max_position_embeddings": 64})",
                                   "of the test");
}

class Training {
 public:
  explicit Training(bool fp8) {
    options_.sequenceLength = length;
    options_.batchTokens = rows * length;
    options_.microBatch = 1;
    options_.storage = base::DType::bf16;
    options_.fp8 = fp8;
    shape_ = shareOut(options_, {.data = test::world().size()});
    step_ = std::make_unique<TrainingStep>(model_, options_, shape_, test::world(), cpu_.device());
    initialise(model_, 1, step_->parameters(), step_->optimizer(), cpu_.device());
  }

  double take(std::int64_t number) {
    data::Batch batch(shape_.rowsPerRank, length);
    for (std::int64_t row = 0; row < shape_.rowsPerRank; ++row) {
      const std::int64_t global = test::world().rank() * shape_.rowsPerRank + row;
      for (std::int64_t t = 0; t < length; ++t) {
        const auto at = static_cast<std::size_t>(row * length + t);
        batch.tokens[at] = static_cast<std::int32_t>((global * 7 + t * t) % 251);
        batch.targets[at] = static_cast<std::int32_t>((global * 7 + (t + 1) * (t + 1)) % 251);
        batch.documentStart[at] = 0;
        batch.positions[at] = static_cast<std::int32_t>(t);
        ++batch.targetCount;
      }
    }
    return step_->run(batch, number, 5e-3, 0).loss;
  }
  std::vector<double> losses(std::int64_t first, std::int64_t last) {
    std::vector<double> all;
    for (std::int64_t number = first; number <= last; ++number) all.push_back(take(number));
    return all;
  }
  Fp8Scaling& scaling() { return *step_->fp8(); }

 private:
  CpuDevice cpu_;
  model::Configuration model_ = model();
  TrainOptions options_;
  BatchShape shape_;
  std::unique_ptr<TrainingStep> step_;
};

TEST(Fp8Training, lossesFollowThoseOfBfloat16WithinTwoPercentWhileTheyFallToAThird) {
  const std::vector<double> rounded = Training(true).losses(1, 30), plain = Training(false).losses(1, 30);
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(rounded[i] / plain[i], 1, 0.02) << "step " << i + 1;
  EXPECT_NE(rounded, plain);
  EXPECT_LT(rounded.back(), plain.front() / 3);
}

TEST(Fp8Training, scalesComeFromTheLargestValuesOfAllRanksAndTheLastSteps) {
  Training run(true);
  EXPECT_EQ(run.scaling().scale(0, 0), 0) << "no history: by the operand's own";
  run.losses(1, 3);
  const float own = run.scaling().scale(0, 2);
  EXPECT_GT(own, 1e3f) << "gradients are small";
  const auto of = [](float scale) { return std::vector<float>{scale}; };
  std::vector<float> first = of(own);
  test::world().broadcast({first.data(), base::DType::f32, 1}, 0);
  EXPECT_EQ(first, of(own));
}

TEST(Fp8Training, historyIsSavedAndRestoredExactly) {
  Training run(true);
  run.losses(1, 20);  // longer than a history is
  const std::string saved = run.scaling().save();
  Training other(true);
  other.scaling().restore(saved);
  EXPECT_EQ(other.scaling().save(), saved);
  for (std::size_t operand = 0; operand < Fp8Scaling::operands; ++operand) {
    EXPECT_EQ(other.scaling().scale(3, operand), run.scaling().scale(3, operand));
  }
  other.scaling().restore("{}");
  EXPECT_EQ(other.scaling().save(), saved) << "what a checkpoint without 8 bits does not hold stays";
}

}  // namespace
}  // namespace tandem::train
