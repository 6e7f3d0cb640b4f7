// What NVML tells, and what it does not: an unsupported value is absent.

#include <gtest/gtest.h>

#include "tests/common/telemetry/emulated_device.h"

namespace tandem::telemetry {
namespace {

TEST(DeviceSensors, tellWhatTheDriverReports) {
  const EmulatedDevice device(healthySpark + "millijoules 123456\n");
  const OpenedSensors opened = EmulatedDevice::open();
  ASSERT_TRUE(opened.sensors) << opened.whyNot;
  EXPECT_EQ(opened.sensors->identity().name, "NVIDIA GB10");
  EXPECT_EQ(opened.sensors->identity().driver, "580.95.05");
  EXPECT_EQ(opened.sensors->identity().highestClockMegahertz, 3003);
  const DeviceReading reading = opened.sensors->read();
  EXPECT_EQ(reading.clockMegahertz, 2405);
  EXPECT_EQ(reading.powerWatts, 89);
  EXPECT_EQ(reading.temperatureCelsius, 70);
  EXPECT_EQ(reading.utilisation, 0.96);
  EXPECT_EQ(reading.throttleReasons, 0u);
  EXPECT_EQ(reading.thermalSlowdownSeconds, 1);
  EXPECT_DOUBLE_EQ(*reading.energyJoules, 123.456);
}

TEST(DeviceSensors, leaveOutWhatTheDriverDoesNotSupport) {
  const EmulatedDevice device("name NVIDIA GB10\nuuid " + emulatedUuid + "\n");
  const OpenedSensors opened = EmulatedDevice::open();
  ASSERT_TRUE(opened.sensors) << opened.whyNot;
  EXPECT_EQ(opened.sensors->identity().driver, "");
  const DeviceReading reading = opened.sensors->read();
  EXPECT_FALSE(reading.clockMegahertz);
  EXPECT_FALSE(reading.powerWatts);
  EXPECT_FALSE(reading.temperatureCelsius);
  EXPECT_FALSE(reading.utilisation);
  EXPECT_FALSE(reading.throttleReasons);
  EXPECT_FALSE(reading.thermalSlowdownSeconds);
  EXPECT_FALSE(reading.energyJoules);
  EXPECT_FALSE(reading.freeBytes);
  EXPECT_FALSE(reading.totalBytes);
}

TEST(DeviceSensors, sayWhyThereAreNone) {
  EXPECT_NE(openNvml("00", "/no/such/library.so").whyNot.find("/no/such/library.so"), std::string::npos);
  const EmulatedDevice noDriver("uuid " + emulatedUuid + "\n");
  EXPECT_NE(EmulatedDevice::open().whyNot.find("Driver Not Loaded"), std::string::npos);
  const EmulatedDevice other("name NVIDIA GB10\nuuid GPU-ffffffff-0000-0000-0000-000000000000\n");
  EXPECT_NE(EmulatedDevice::open().whyNot.find("shows no device with the UUID"), std::string::npos);
}

TEST(ThrottleReasons, areNamed) {
  EXPECT_EQ(throttle::text(0), "none");
  EXPECT_EQ(throttle::text(1), "none");  // idle
  EXPECT_EQ(throttle::text(0x80 | 0x20), "software thermal slowdown, power brake");
}

}  // namespace
}  // namespace tandem::telemetry
