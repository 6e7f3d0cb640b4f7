// What the metrics of a trial tell of a run.

#include "common/train/trial.h"

#include <gtest/gtest.h>

#include "common/telemetry/metrics.h"

namespace tandem::train {
namespace {

// Steps of 2 s, the first three ten times as long, a checkpoint of 5 s before the fourth; and what is no step.
std::string metricsOfTenSteps() {
  std::string text;
  for (std::int64_t step = 1; step <= 10; ++step) {
    const double seconds = step <= 3 ? 20 : 2, checkpoint = step == 4 ? 5 : 0;
    text += telemetry::toJson(telemetry::StepMetrics{.step = step,
                                                     .stepSeconds = seconds + checkpoint,
                                                     .waitSeconds = 0.2,
                                                     .communicationSeconds = 0.5,
                                                     .dataSeconds = 0.1,
                                                     .checkpointSeconds = checkpoint,
                                                     .modelFlopsPerSecond = 3e12,
                                                     .matrixRateShare = 0.4}) +
            "\n";
  }
  return text + telemetry::toJson(telemetry::EvaluationMetrics{.step = 10, .evaluation = "val.h5"}) + "\n{\"step\": 1";
}

TrainOptions run() {
  TrainOptions options;
  options.steps = 1000;
  options.checkpointEvery = 300;
  options.batchTokens = 4096;
  return options;
}

TEST(Trial, tellsTheUsualStepAndItsShares) {
  const telemetry::TrialFacts facts = trialFacts(metricsOfTenSteps(), run(), {}, 2);
  EXPECT_EQ(facts.steps, 10);
  EXPECT_TRUE(facts.finite);
  EXPECT_DOUBLE_EQ(facts.stepSeconds, 2);
  EXPECT_DOUBLE_EQ(facts.waitShare, 0.1);
  EXPECT_DOUBLE_EQ(facts.communicationShare, 0.25);
  EXPECT_DOUBLE_EQ(facts.dataShare, 0.05);
  EXPECT_DOUBLE_EQ(facts.tokensPerSecond, 2048);
  EXPECT_DOUBLE_EQ(facts.checkpointSeconds, 5);
  EXPECT_EQ(facts.checkpoints, 4);
  EXPECT_DOUBLE_EQ(*facts.mfu, 0.4);
  EXPECT_DOUBLE_EQ(facts.projectedSeconds(), 1000 * 2 + 4 * 5);
}

TEST(Trial, ofKnownDevicesTheShareIsOfTheirPeak) {
  const TrialOptions trial{.steps = 10, .peakFlops = 5e12, .peakSource = "its maker"};
  const telemetry::TrialFacts facts = trialFacts(metricsOfTenSteps(), run(), trial, 2);
  EXPECT_DOUBLE_EQ(*facts.mfu, 0.3);
  EXPECT_NE(facts.mfuOf.find("its maker"), std::string::npos);
}

TEST(Trial, aStepThatWasSkippedIsNotFinite) {
  const std::string skipped = telemetry::toJson(telemetry::StepMetrics{.step = 11, .stepSeconds = 2, .skipped = true});
  EXPECT_FALSE(trialFacts(skipped + "\n" + metricsOfTenSteps(), run(), {}, 1).finite);
  EXPECT_EQ(trialFacts("", run(), {}, 1).steps, 0);
}

}  // namespace
}  // namespace tandem::train
