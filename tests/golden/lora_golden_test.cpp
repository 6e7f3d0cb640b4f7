// Training curves of adapters equal those of PEFT with PyTorch, on any number of ranks (make_lora_golden.py).

#include <gtest/gtest.h>

#include <memory>

#include "common/train/training_step.h"
#include "tests/golden/golden.h"
#include "tests/mpi_test.h"

namespace tandem::test {
namespace {

class GoldenAdapters : public testing::TestWithParam<std::string> {
 protected:
  GoldenAdapters() : golden_(GetParam()) {
    options_.sequenceLength = golden_.time();
    options_.optimizer = {.beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .weightDecay = 0.0f};
    options_.clipNorm = 1.0;
    options_.adapters = {.rank = static_cast<std::int64_t>(golden_.values("rank").front()),
                         .alpha = golden_.values("alpha").front(),
                         .decomposed = GetParam().starts_with("dora"),
                         .targets = {}};
    if (GetParam().ends_with("llama")) options_.adapters->targets = {"attention.output", "mlp.down"};
    shape_.rowsPerRank = world().size() == 1 ? golden_.rows() : 1;
    shape_.rows = shape_.rowsPerRank * world().size();
    shape_.microBatch = 1;
    shape_.microBatches = shape_.rowsPerRank;
  }

  train::Device device() { return {*backend_, *stream_, arena_}; }

  std::unique_ptr<train::TrainingStep> makeStep() {
    auto step = std::make_unique<train::TrainingStep>(golden_.configuration(), options_, shape_, world(), device());
    for (const sharding::FlatParameter& parameter : step->frozen()->layout().parameters()) {
      const std::vector<float> values = golden_.parameter(parameter.name);
      std::copy(values.begin(), values.end(), static_cast<float*>(step->frozen()->weightAt(parameter.offset)));
    }
    for (const sharding::OwnedRun& run : step->optimizer().ownedRuns()) {
      const std::vector<double> values = golden_.values("adapters/" + nameOf(*step, run));
      std::copy_n(values.begin() + run.begin, run.count, step->optimizer().master(run));
    }
    step->optimizer().publishMasters();
    return step;
  }

  static const std::string& nameOf(train::TrainingStep& step, const sharding::OwnedRun& run) {
    return step.parameters().layout().parameters()[static_cast<std::size_t>(run.parameter)].name;
  }

  Golden golden_;
  train::TrainOptions options_;
  train::BatchShape shape_;
  std::unique_ptr<kernels::Backend> backend_ = kernels::makeCpuBackend({.threads = 1});
  std::unique_ptr<kernels::Stream> stream_ = backend_->makeStream();
  std::shared_ptr<runtime::Arena> arena_ = std::make_shared<runtime::Arena>(*backend_);
};

TEST_P(GoldenAdapters, twentyStepsFollowPefts) {
  const auto step = makeStep();
  const std::vector<double> curve = golden_.values("curve"), norms = golden_.values("curve_gradient_norms");
  for (std::size_t i = 0; i < curve.size(); ++i) {
    const auto number = static_cast<std::int64_t>(i);
    const data::Batch batch =
        golden_.batch(number % golden_.batches(), world().rank() * shape_.rowsPerRank, shape_.rowsPerRank);
    const train::StepResult result = step->run(batch, number + 1, 5e-3, 0);
    EXPECT_NEAR(result.loss, curve[i], 1e-5 * curve[i]) << "step " << i;
    EXPECT_NEAR(result.gradientNorm, norms[i], 1e-4 * norms[i]) << "step " << i;
  }
  for (const sharding::OwnedRun& run : step->optimizer().ownedRuns()) {
    const std::vector<double> expected = golden_.values("final/" + nameOf(*step, run));
    for (std::int64_t i = 0; i < run.count; ++i) {
      EXPECT_NEAR(static_cast<double>(step->optimizer().master(run)[i]),
                  expected[static_cast<std::size_t>(run.begin + i)], 1e-4)
          << nameOf(*step, run) << " " << i;
    }
  }
}

TEST_P(GoldenAdapters, onlyTheAdaptersHaveGradientsAndStates) {
  const auto step = makeStep();
  std::int64_t learned = 0;
  for (const sharding::FlatParameter& parameter : step->parameters().layout().parameters()) {
    EXPECT_TRUE(train::isAdapter(parameter.name)) << parameter.name;
    learned += parameter.count;
  }
  std::int64_t frozen = 0;
  for (const sharding::FlatParameter& parameter : step->frozen()->layout().parameters()) frozen += parameter.count;
  EXPECT_LT(learned, frozen);
  EXPECT_EQ(step->frozen()->gradients(), nullptr);
  EXPECT_EQ(step->executable().program().ofRole(graph::Role::gradient).size(),
            step->parameters().layout().parameters().size());
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenAdapters, testing::Values("lora_gpt2", "lora_llama", "dora_gpt2", "dora_llama"));

}  // namespace
}  // namespace tandem::test
