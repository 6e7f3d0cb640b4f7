// The learning rate of every step, against its closed form.

#include "common/optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "tests/common/data/expect_error.h"

namespace tandem::optim {
namespace {

Schedule make(ScheduleKind kind) {
  return {.kind = kind, .peak = 2.0, .warmupSteps = 10, .steps = 110, .lastFraction = 0.1, .decayFraction = 0.5};
}

TEST(Schedule, everyKindWarmsUpFromZeroInAStraightLine) {
  for (const ScheduleKind kind :
       {ScheduleKind::constant, ScheduleKind::linear, ScheduleKind::cosine, ScheduleKind::warmupStableDecay}) {
    const Schedule schedule = make(kind);
    EXPECT_DOUBLE_EQ(schedule.rate(1), 0.2);
    EXPECT_DOUBLE_EQ(schedule.rate(5), 1.0);
    EXPECT_DOUBLE_EQ(schedule.rate(10), 2.0);
  }
}

TEST(Schedule, withoutWarmUpTheFirstStepIsNearThePeak) {
  Schedule schedule = make(ScheduleKind::linear);
  schedule.warmupSteps = 0;
  schedule.steps = 100;
  EXPECT_DOUBLE_EQ(schedule.rate(1), 2.0 * (1 - 0.9 * 0.01));
}

TEST(Schedule, constantStays) { EXPECT_DOUBLE_EQ(make(ScheduleKind::constant).rate(110), 2.0); }

TEST(Schedule, linearFallsEvenlyToTheLastFraction) {
  const Schedule schedule = make(ScheduleKind::linear);
  EXPECT_DOUBLE_EQ(schedule.rate(60), 2.0 * (1 - 0.9 * 0.5));
  EXPECT_DOUBLE_EQ(schedule.rate(110), 0.2);
}

TEST(Schedule, cosineFallsAsHalfAWaveToTheLastFraction) {
  const Schedule schedule = make(ScheduleKind::cosine);
  EXPECT_DOUBLE_EQ(schedule.rate(60), 2.0 * 0.55);
  EXPECT_NEAR(schedule.rate(35), 2.0 * (0.1 + 0.9 * 0.5 * (1 + std::cos(std::numbers::pi / 4))), 1e-12);
  EXPECT_NEAR(schedule.rate(110), 0.2, 1e-12);
}

TEST(Schedule, wsdStaysAtThePeakThenFallsOverTheDecayFraction) {
  const Schedule schedule = make(ScheduleKind::warmupStableDecay);
  EXPECT_DOUBLE_EQ(schedule.rate(11), 2.0);
  EXPECT_DOUBLE_EQ(schedule.rate(55), 2.0);
  EXPECT_DOUBLE_EQ(schedule.rate(66), 2.0 * (1 - 0.9 * 0.2));
  EXPECT_NEAR(schedule.rate(110), 0.2, 1e-12);
}

TEST(Schedule, aWsdDecayNeverBeginsInsideTheWarmUp) {
  Schedule schedule = make(ScheduleKind::warmupStableDecay);
  schedule.decayFraction = 1.0;
  EXPECT_DOUBLE_EQ(schedule.rate(10), 2.0);
  EXPECT_LT(schedule.rate(11), 2.0);
}

TEST(Schedule, beyondTheLastStepTheRateStaysAtTheLastFraction) {
  EXPECT_NEAR(make(ScheduleKind::cosine).rate(500), 0.2, 1e-12);
  EXPECT_NEAR(make(ScheduleKind::linear).rate(500), 0.2, 1e-12);
}

TEST(Schedule, aRunShorterThanItsWarmUpIsAllWarmUp) {
  Schedule schedule = make(ScheduleKind::cosine);
  schedule.steps = 4;
  EXPECT_DOUBLE_EQ(schedule.rate(4), 0.8);
}

TEST(Schedule, namesAreThoseOfTheCommandLine) {
  EXPECT_EQ(parseSchedule("constant"), ScheduleKind::constant);
  EXPECT_EQ(parseSchedule("linear"), ScheduleKind::linear);
  EXPECT_EQ(parseSchedule("cosine"), ScheduleKind::cosine);
  EXPECT_EQ(parseSchedule("wsd"), ScheduleKind::warmupStableDecay);
  data::expectError(base::ErrorKind::usage, {"'step'", "constant, linear, cosine, wsd"}, [] { parseSchedule("step"); });
}

}  // namespace
}  // namespace tandem::optim
