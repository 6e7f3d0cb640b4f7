// The sampler sums up what device and host told since it was last asked.

#include "common/telemetry/health_sampler.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/common/telemetry/emulated_device.h"

namespace tandem::telemetry {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds never{3'600'000};  // only sampleAndTake samples

TEST(HealthSampler, sumsUpWhatTheDeviceToldInBetween) {
  const EmulatedDevice device(healthySpark);
  HealthSampler sampler(EmulatedDevice::open().sensors, HostSensors(), never);
  device.setState(EmulatedDevice::changed(EmulatedDevice::changed(healthySpark, "clock", "805"), "reasons", "32"));
  const HealthSummary summary = sampler.sampleAndTake();
  EXPECT_EQ(summary.samples, 2);
  EXPECT_EQ(summary.deviceClockMegahertz->least, 805);
  EXPECT_EQ(summary.deviceClockMegahertz->mean, 1605);
  EXPECT_EQ(summary.deviceClockMegahertz->most, 2405);
  EXPECT_EQ(summary.throttleReasons, throttle::softwareThermal);
  EXPECT_NEAR(*summary.deviceJoules, 89 * summary.seconds, 1e-9);  // by its power, as it has no counter
}

TEST(HealthSampler, aStretchWithoutASampleHasTheLastOnesValues) {
  const EmulatedDevice device(healthySpark);
  HealthSampler sampler(EmulatedDevice::open().sensors, HostSensors(), never);
  sampler.take();
  const HealthSummary summary = sampler.take();
  EXPECT_EQ(summary.deviceClockMegahertz->mean, 2405);
  EXPECT_EQ(summary.seconds, 0);
  EXPECT_FALSE(summary.thermalSlowdownShare);
  EXPECT_FALSE(summary.stolenShare);
}

TEST(HealthSampler, whatIsNotReportedIsAbsent) {
  HealthSampler sampler(nullptr, HostSensors("/no/such/root"), never);
  const HealthSummary summary = sampler.sampleAndTake();
  EXPECT_FALSE(summary.deviceClockMegahertz);
  EXPECT_FALSE(summary.devicePowerWatts);
  EXPECT_FALSE(summary.throttleReasons);
  EXPECT_FALSE(summary.deviceJoules);
  EXPECT_FALSE(summary.leastAvailableBytes);
}

TEST(HealthSampler, samplesByItself) {
  HealthSampler sampler(nullptr, HostSensors(), milliseconds(1));
  std::int64_t samples = 0;
  while (samples < 5) samples += sampler.take().samples - 1;  // ends, or the test's time does
  SUCCEED();
}

TEST(HealthSampler, samplesLessOftenWhereThatWouldTakeMoreThanItsShareOfTheTime) {
  HealthSampler sampler(nullptr, HostSensors(), milliseconds(1), 1e-9);  // the next one but one in some days
  while (sampler.take().samples < 2) {
  }
  std::this_thread::sleep_for(milliseconds(30));
  EXPECT_EQ(sampler.take().samples, 1);
}

}  // namespace
}  // namespace tandem::telemetry
