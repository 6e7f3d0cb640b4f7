// Learning preferences follows PyTorch's autograd, on any number of ranks: with adapters, and with all weights
// (make_dpo_golden.py).

#include <gtest/gtest.h>

#include <memory>

#include "common/train/training_step.h"
#include "tests/golden/golden.h"
#include "tests/mpi_test.h"

namespace tandem::test {
namespace {

class GoldenPreferences : public testing::TestWithParam<std::string> {
 protected:
  GoldenPreferences() : golden_("lora_" + GetParam()), expected_(hdf5::File::open(golden_.folder() + "dpo.h5")) {
    options_.sequenceLength = golden_.time();
    options_.optimizer = {.beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .weightDecay = 0.0f};
    options_.clipNorm = 1.0;
    options_.preference = {.beta = 0.1, .labelSmoothing = 0.05};
    if (adapts()) {
      options_.adapters = {.rank = static_cast<std::int64_t>(golden_.values("rank").front()),
                           .alpha = golden_.values("alpha").front(),
                           .targets = {"attention.output", "mlp.down"}};
    }
    shape_.rowsPerRank = world().size() == 1 ? golden_.rows() : 1;
    shape_.rows = shape_.rowsPerRank * world().size();
    shape_.microBatch = 1;
    shape_.microBatches = shape_.rowsPerRank;
  }

  static bool adapts() { return GetParam() == "llama"; }

  std::unique_ptr<train::TrainingStep> makeStep() {
    const train::Device device{*backend_, *stream_, arena_};
    auto step = std::make_unique<train::TrainingStep>(golden_.configuration(), options_, shape_, world(), device);
    if (adapts()) {
      for (const sharding::FlatParameter& parameter : step->frozen()->layout().parameters()) {
        const std::vector<float> values = golden_.parameter(parameter.name);
        std::copy(values.begin(), values.end(), static_cast<float*>(step->frozen()->weightAt(parameter.offset)));
      }
    }
    for (const sharding::OwnedRun& run : step->optimizer().ownedRuns()) {
      const std::string& name = step->parameters().layout().parameters()[static_cast<std::size_t>(run.parameter)].name;
      const std::vector<double> values = golden_.values((adapts() ? "adapters/" : "parameters/") + name);
      std::copy_n(values.begin() + run.begin, run.count, step->optimizer().master(run));
    }
    step->optimizer().publishMasters();
    step->compareWith({expected("reference")});
    return step;
  }

  // This rank's rows; the two documents of a row are those that the reference has for it.
  data::Batch batch(std::int64_t number) const {
    const std::int64_t first = world().rank() * shape_.rowsPerRank, time = golden_.time();
    data::Batch rows = golden_.batch(number, first, shape_.rowsPerRank);
    for (std::int64_t row = 0; row < rows.rows && first + row < golden_.rows(); ++row) {
      const std::int64_t begin = row * time, boundary = rows.documentStart[static_cast<std::size_t>(begin + time - 1)];
      const std::int64_t document = 2 * (number * golden_.rows() + first + row);
      rows.documents.push_back({.begin = begin, .count = boundary, .document = document});
      rows.documents.push_back({.begin = begin + boundary, .count = time - boundary, .document = document + 1});
    }
    return rows;
  }

  std::vector<double> expected(const std::string& measure) const {
    const hdf5::Dataset dataset = expected_.dataset(GetParam() + "/" + measure);
    std::vector<double> values(static_cast<std::size_t>(dataset.count()));
    dataset.read(0, dataset.count(), values.data());
    return values;
  }

  Golden golden_;
  hdf5::File expected_;
  train::TrainOptions options_;
  train::BatchShape shape_;
  std::unique_ptr<kernels::Backend> backend_ = kernels::makeCpuBackend({.threads = 1});
  std::unique_ptr<kernels::Stream> stream_ = backend_->makeStream();
  std::shared_ptr<runtime::Arena> arena_ = std::make_shared<runtime::Arena>(*backend_);
};

TEST_P(GoldenPreferences, twelveStepsFollowPyTorch) {
  const auto step = makeStep();
  const std::vector<double> losses = expected("losses"), norms = expected("gradient_norms");
  const std::vector<double> chosen = expected("reward_chosen"), rejected = expected("reward_rejected");
  const std::vector<double> accuracy = expected("reward_accuracy");
  for (std::size_t i = 0; i < losses.size(); ++i) {
    SCOPED_TRACE("step " + std::to_string(i));
    const auto number = static_cast<std::int64_t>(i);
    const train::StepResult result =
        step->run(batch(number % golden_.batches()), number + 1, adapts() ? 5e-3 : 1e-3, 0);
    EXPECT_NEAR(result.loss, losses[i], 2e-5 * losses[i]);
    EXPECT_NEAR(result.gradientNorm, norms[i], 2e-4 * norms[i]);
    ASSERT_TRUE(result.preference);
    EXPECT_EQ(result.preference->pairs, golden_.rows());
    EXPECT_NEAR(result.preference->rewardChosen, chosen[i], 5e-5);
    EXPECT_NEAR(result.preference->rewardRejected, rejected[i], 5e-5);
    EXPECT_NEAR(result.preference->rewardMargin, chosen[i] - rejected[i], 5e-5);
    if (i > 0) {  // at first, all may be a tie
      EXPECT_EQ(result.preference->rewardAccuracy, accuracy[i]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenPreferences, testing::Values("gpt2", "llama"));

}  // namespace
}  // namespace tandem::test
