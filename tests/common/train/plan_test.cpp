// What --dry-run tells: the numbers of the model's definition, and memory as it will be.

#include <gtest/gtest.h>

#include "common/train/trainer.h"
#include "tests/common/data/temporary_folder.h"

namespace tandem::train {
namespace {

const std::string gpt2 = R"({"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12,
  "n_positions": 1024})";

class Plan : public testing::Test {
 protected:
  Plan() {
    options_.model = folder_.write("model.json", gpt2);
    options_.batchTokens = 4 * 256;
    options_.sequenceLength = 256;
  }
  std::string text(int ranks = 1) const { return describePlan(options_, ranks); }

  data::TemporaryFolder folder_;
  TrainOptions options_;
};

TEST_F(Plan, tellsParametersAndTheirMemory) {
  const std::string plan = text();
  EXPECT_NE(plan.find("124439808 parameters (124.4 M), 1 ranks"), std::string::npos) << plan;
  EXPECT_NE(plan.find("weights                       474.7 MiB"), std::string::npos) << plan;
  EXPECT_NE(plan.find("gradients                     474.7 MiB"), std::string::npos) << plan;
  EXPECT_NE(plan.find("optimizer states              949.4 MiB"), std::string::npos) << plan;
}

TEST_F(Plan, sharesTheOptimizerStatesOverRanks) {
  EXPECT_NE(text(2).find("optimizer states              474.7 MiB"), std::string::npos) << text(2);
}

TEST_F(Plan, countsMastersWhereWeightsAreBfloat16) {
  options_.storage = base::DType::bf16;
  const std::string plan = text();
  EXPECT_NE(plan.find("weights                       237.4 MiB"), std::string::npos) << plan;
  EXPECT_NE(plan.find("optimizer states and masters  1.4 GiB"), std::string::npos) << plan;
}

TEST_F(Plan, recomputationSavesActivations) {
  auto activations = [&] {
    const std::string plan = text();
    const std::size_t at = plan.find("activations                   ");
    return std::stod(plan.substr(at + 30));
  };
  const double all = activations();
  options_.recompute = graph::Recompute::full;
  EXPECT_LT(activations(), 0.8 * all);
}

TEST(ModelFlops, areSixNPlusTwelveLdT) {
  const model::Configuration c = model::parseConfiguration(gpt2, "of the test");
  EXPECT_DOUBLE_EQ(modelFlopsPerToken(c, 124439808, 1024), 6.0 * 124439808 + 12.0 * 12 * 768 * 1024);
}

}  // namespace
}  // namespace tandem::train
