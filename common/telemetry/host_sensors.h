#pragma once
// What a host says of itself, in the files of Linux: clocks, temperatures, energy, time that a hypervisor took away,
// memory, network interfaces. What a machine does not have (containers and virtual ones lack most) is absent.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tandem::telemetry {

struct HostReading {
  std::optional<double> clockMegahertz;         // mean over the processors
  std::optional<double> highestClockMegahertz;  // that they can reach
  std::optional<double> temperatureCelsius;     // of the hottest zone
  std::optional<double> energyJoules;           // of all packages since the first reading
  // Counters since the start of the system, summed over processors.
  std::optional<double> processorSeconds, busySeconds, stolenSeconds, thermalThrottleSeconds;
  std::optional<std::int64_t> majorFaults;  // pages that had to come from a disk
  std::optional<std::int64_t> totalBytes, availableBytes, swapTotalBytes, swapFreeBytes;
};

struct NetworkInterface {
  std::string name;
  bool isUp = false;
  std::optional<std::int64_t> mtu;
  std::optional<std::int64_t> megabitsPerSecond;
};

// Where the host's /proc, /sys and /etc are: the folder that TANDEM_HOST_ROOT names, for containers which have them
// mounted there, else "/".
std::filesystem::path hostRoot();

class HostSensors {
 public:
  // Reads below a root folder.
  explicit HostSensors(std::filesystem::path root = hostRoot());

  HostReading read();
  // Of hardware, whether up or not: no loopback, bridge or other software interface.
  std::vector<NetworkInterface> networkInterfaces() const;
  std::string operatingSystem() const;  // "Debian GNU/Linux 12 (bookworm)"
  std::string processorName() const;    // "AMD EPYC 7763 64-Core Processor"; empty where the kernel has no name for it
  std::string kernel() const;           // "6.1.0-18-amd64"
  std::string architecture() const;     // "x86_64", "aarch64"

 private:
  std::optional<double> energyJoules();

  std::filesystem::path root_;
  std::map<std::string, double> lastMicrojoules_;  // by package
  double joules_ = 0;
};

}  // namespace tandem::telemetry
