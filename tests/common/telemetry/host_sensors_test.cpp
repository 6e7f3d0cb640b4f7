// What a host tells in the files of Linux, from a root folder made here.

#include "common/telemetry/host_sensors.h"

#include <gtest/gtest.h>

#include "tests/common/data/temporary_folder.h"

namespace tandem::telemetry {
namespace {

class HostSensorsTest : public testing::Test {
 protected:
  HostReading read() const { return HostSensors(folder_.path()).read(); }
  data::TemporaryFolder folder_;
};

TEST_F(HostSensorsTest, anEmptyMachineTellsNothing) {
  const HostReading reading = read();
  EXPECT_FALSE(reading.clockMegahertz);
  EXPECT_FALSE(reading.temperatureCelsius);
  EXPECT_FALSE(reading.energyJoules);
  EXPECT_FALSE(reading.stolenSeconds);
  EXPECT_FALSE(reading.thermalThrottleSeconds);
  EXPECT_FALSE(reading.majorFaults);
  EXPECT_FALSE(reading.availableBytes);
  EXPECT_TRUE(HostSensors(folder_.path()).networkInterfaces().empty());
}

TEST_F(HostSensorsTest, clocksAreTheMeanOfTheProcessors) {
  folder_.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "2000000\n");
  folder_.write("sys/devices/system/cpu/cpu10/cpufreq/scaling_cur_freq", "3000000\n");
  folder_.write("sys/devices/system/cpu/cpu10/cpufreq/cpuinfo_max_freq", "3500000\n");
  folder_.write("sys/devices/system/cpu/cpufreq/scaling_cur_freq", "9000000\n");  // no processor
  EXPECT_EQ(read().clockMegahertz, 2500);
  EXPECT_EQ(read().highestClockMegahertz, 3500);
}

TEST_F(HostSensorsTest, theHottestZoneCounts) {
  folder_.write("sys/class/thermal/thermal_zone0/temp", "45000\n");
  folder_.write("sys/class/thermal/thermal_zone1/temp", "71500\n");
  folder_.write("sys/class/thermal/thermal_zone2/temp", "-274000\n");  // a sensor that is off
  folder_.write("sys/class/thermal/cooling_device0/temp", "99000\n");
  EXPECT_EQ(read().temperatureCelsius, 71.5);
}

TEST_F(HostSensorsTest, energyGrowsOverTheEndOfTheCounter) {
  folder_.write("sys/class/powercap/intel-rapl:0/energy_uj", "9000000\n");
  folder_.write("sys/class/powercap/intel-rapl:0/max_energy_range_uj", "10000000\n");
  folder_.write("sys/class/powercap/intel-rapl:0:0/energy_uj", "5000000\n");  // a part of the package
  HostSensors sensors(folder_.path());
  EXPECT_EQ(sensors.read().energyJoules, 0);
  folder_.write("sys/class/powercap/intel-rapl:0/energy_uj", "1000000\n");
  EXPECT_DOUBLE_EQ(*sensors.read().energyJoules, 2);
}

TEST_F(HostSensorsTest, stolenTimeIsNeitherBusyNorIdle) {
  folder_.write("proc/stat", "cpu  100 0 50 800 50 0 0 200 0 0\ncpu0 1 2 3 4 5 6 7 8\n");
  const HostReading reading = read();
  EXPECT_DOUBLE_EQ(*reading.stolenSeconds / *reading.processorSeconds, 200.0 / 1200);
  EXPECT_DOUBLE_EQ(*reading.busySeconds / *reading.processorSeconds, 150.0 / 1200);
}

TEST_F(HostSensorsTest, memoryIsInBytes) {
  folder_.write("proc/meminfo", "MemTotal:       1000 kB\nMemAvailable:    400 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n");
  folder_.write("proc/vmstat", "pgfault 12\npgmajfault 7\n");
  const HostReading reading = read();
  EXPECT_EQ(reading.totalBytes, 1000 * 1024);
  EXPECT_EQ(reading.availableBytes, 400 * 1024);
  EXPECT_EQ(reading.swapTotalBytes, 0);
  EXPECT_EQ(reading.majorFaults, 7);
}

TEST_F(HostSensorsTest, interfacesAreThoseOfHardware) {
  folder_.write("sys/class/net/enp1s0f0np0/device/vendor", "0x15b3\n");
  folder_.write("sys/class/net/enp1s0f0np0/operstate", "up\n");
  folder_.write("sys/class/net/enp1s0f0np0/mtu", "9000\n");
  folder_.write("sys/class/net/enp1s0f0np0/speed", "200000\n");
  folder_.write("sys/class/net/eth1/device/vendor", "0x15b3\n");
  folder_.write("sys/class/net/eth1/operstate", "down\n");
  folder_.write("sys/class/net/eth1/speed", "-1\n");
  folder_.write("sys/class/net/docker0/operstate", "up\n");
  const std::vector<NetworkInterface> found = HostSensors(folder_.path()).networkInterfaces();
  ASSERT_EQ(found.size(), 2u);
  EXPECT_TRUE(found[0].isUp);
  EXPECT_EQ(found[0].mtu, 9000);
  EXPECT_EQ(found[0].megabitsPerSecond, 200000);
  EXPECT_FALSE(found[1].isUp);
  EXPECT_FALSE(found[1].megabitsPerSecond);
}

TEST_F(HostSensorsTest, theSystemIsCalledAsItCallsItself) {
  folder_.write("etc/os-release", "NAME=\"X\"\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n");
  folder_.write("proc/sys/kernel/osrelease", "6.14.0-1015-nvidia\n");
  folder_.write("proc/sys/kernel/arch", "aarch64\n");
  const HostSensors sensors(folder_.path());
  EXPECT_EQ(sensors.operatingSystem(), "Debian GNU/Linux 12 (bookworm)");
  EXPECT_EQ(sensors.kernel(), "6.14.0-1015-nvidia");
  EXPECT_EQ(sensors.architecture(), "aarch64");
}

TEST_F(HostSensorsTest, aHostWhoseFilesAreMountedElsewhereIsReadThere) {
  EXPECT_EQ(hostRoot(), "/");
  setenv("TANDEM_HOST_ROOT", folder_.path().c_str(), 1);
  folder_.write("proc/meminfo", "MemTotal:       1000 kB\n");
  EXPECT_EQ(HostSensors().read().totalBytes, 1000 * 1024);
  unsetenv("TANDEM_HOST_ROOT");
}

}  // namespace
}  // namespace tandem::telemetry
