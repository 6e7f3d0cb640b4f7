#include "common/telemetry/host_sensors.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string_view>

namespace tandem::telemetry {
namespace {

namespace fs = std::filesystem;

// The first line of a small file; nothing where it cannot be read.
std::optional<std::string> firstLine(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

std::optional<double> numberIn(const fs::path& path) {
  const std::optional<std::string> line = firstLine(path);
  double value = 0;
  if (!line || std::from_chars(line->data(), line->data() + line->size(), value).ec != std::errc()) return std::nullopt;
  return value;
}

std::optional<std::int64_t> wholeNumberIn(const fs::path& path) {
  const std::optional<double> number = numberIn(path);
  return number ? std::optional(static_cast<std::int64_t>(*number)) : std::nullopt;
}

// Entries of a folder whose names begin so and go on with a digit ("cpu0", not "cpufreq"); none where it is missing.
std::vector<fs::path> numbered(const fs::path& folder, const std::string& prefix) {
  std::vector<fs::path> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(prefix) || name.size() == prefix.size()) continue;
    if (name.find_first_not_of("0123456789", prefix.size()) == std::string::npos) found.push_back(entry.path());
  }
  std::ranges::sort(found);
  return found;
}

void addTo(std::optional<double>& sum, const std::optional<double>& value) {
  if (value) sum = sum.value_or(0) + *value;
}
void raiseTo(std::optional<double>& most, const std::optional<double>& value) {
  if (value) most = std::max(most.value_or(*value), *value);
}

void readClocks(const fs::path& root, HostReading& reading) {
  std::optional<double> sum;
  int clocks = 0;
  for (const fs::path& cpu : numbered(root / "sys/devices/system/cpu", "cpu")) {
    const std::optional<double> kilohertz = numberIn(cpu / "cpufreq/scaling_cur_freq");
    addTo(sum, kilohertz);
    clocks += kilohertz ? 1 : 0;
    raiseTo(reading.highestClockMegahertz, numberIn(cpu / "cpufreq/cpuinfo_max_freq"));
    const std::optional<double> throttled = numberIn(cpu / "thermal_throttle/core_throttle_total_time_ms");
    addTo(reading.thermalThrottleSeconds, throttled ? std::optional(*throttled * 1e-3) : std::nullopt);
  }
  if (sum) reading.clockMegahertz = *sum / clocks * 1e-3;
  if (reading.highestClockMegahertz) *reading.highestClockMegahertz *= 1e-3;
}

void readTemperatures(const fs::path& root, HostReading& reading) {
  for (const fs::path& zone : numbered(root / "sys/class/thermal", "thermal_zone")) {
    const std::optional<double> milli = numberIn(zone / "temp");
    if (milli && *milli > 0) raiseTo(reading.temperatureCelsius, *milli * 1e-3);  // absent sensors say 0 or less
  }
}

// The line "cpu  user nice system idle iowait irq softirq steal ..." of /proc/stat, in ticks.
void readProcessorTimes(const fs::path& root, HostReading& reading) {
  const std::optional<std::string> line = firstLine(root / "proc/stat");
  if (!line || !line->starts_with("cpu ")) return;
  std::istringstream text(line->substr(4));
  std::vector<double> ticks;
  for (double value = 0; ticks.size() < 8 && text >> value;) ticks.push_back(value);
  if (ticks.size() < 8) return;
  const double seconds = 1.0 / static_cast<double>(sysconf(_SC_CLK_TCK));
  const double idle = ticks[3] + ticks[4];
  double all = 0;
  for (const double value : ticks) all += value;
  reading.processorSeconds = all * seconds;
  reading.stolenSeconds = ticks[7] * seconds;
  reading.busySeconds = (all - idle - ticks[7]) * seconds;
}

// Of lines "Name: 123 kB" or "name 123", those that are asked for: the files have hundreds, and are read every second.
std::vector<std::optional<std::int64_t>> numbersNamed(const fs::path& path,
                                                      const std::vector<std::string_view>& names) {
  std::vector<std::optional<std::int64_t>> numbers(names.size());
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t end = line.find_first_of(": ");
    const auto found = std::ranges::find(names, std::string_view(line).substr(0, end));
    if (found == names.end() || end == std::string::npos) continue;
    const std::size_t begin = line.find_first_of("0123456789", end);
    if (begin == std::string::npos) continue;
    std::int64_t value = 0;
    std::from_chars(line.data() + begin, line.data() + line.size(), value);
    numbers[static_cast<std::size_t>(found - names.begin())] = value;
  }
  return numbers;
}

void readMemory(const fs::path& root, HostReading& reading) {
  const auto kibibytes = numbersNamed(root / "proc/meminfo", {"MemTotal", "MemAvailable", "SwapTotal", "SwapFree"});
  const auto bytes = [&](std::size_t index) {
    return kibibytes[index] ? std::optional(*kibibytes[index] * 1024) : std::nullopt;
  };
  reading.totalBytes = bytes(0);
  reading.availableBytes = bytes(1);
  reading.swapTotalBytes = bytes(2);
  reading.swapFreeBytes = bytes(3);
  reading.majorFaults = numbersNamed(root / "proc/vmstat", {"pgmajfault"})[0];
}

}  // namespace

std::filesystem::path hostRoot() {
  const char* named = std::getenv("TANDEM_HOST_ROOT");
  return named != nullptr ? named : "/";
}

HostSensors::HostSensors(std::filesystem::path root) : root_(std::move(root)) {}

// A package's counter of microjoules begins again at max_energy_range_uj, after an hour at full power.
std::optional<double> HostSensors::energyJoules() {
  bool found = false;
  for (const fs::path& package : numbered(root_ / "sys/class/powercap", "intel-rapl:")) {
    const std::optional<double> now = numberIn(package / "energy_uj");  // readable by root only on most systems
    if (!now) continue;
    found = true;
    const auto [last, isFirst] = lastMicrojoules_.try_emplace(package.filename(), *now);
    double grown = *now - last->second;
    if (grown < 0) grown += numberIn(package / "max_energy_range_uj").value_or(-grown);
    joules_ += isFirst ? 0 : grown * 1e-6;
    last->second = *now;
  }
  return found ? std::optional(joules_) : std::nullopt;
}

HostReading HostSensors::read() {
  HostReading reading;
  readClocks(root_, reading);
  readTemperatures(root_, reading);
  readProcessorTimes(root_, reading);
  readMemory(root_, reading);
  reading.energyJoules = energyJoules();
  return reading;
}

std::vector<NetworkInterface> HostSensors::networkInterfaces() const {
  std::vector<NetworkInterface> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(root_ / "sys/class/net", ignored)) {
    if (!fs::exists(entry.path() / "device")) continue;  // of software: no device behind it
    NetworkInterface one{.name = entry.path().filename()};
    one.isUp = firstLine(entry.path() / "operstate") == "up";
    one.mtu = wholeNumberIn(entry.path() / "mtu");
    const std::optional<std::int64_t> speed = wholeNumberIn(entry.path() / "speed");
    if (speed && *speed > 0) one.megabitsPerSecond = speed;  // -1 where nothing is plugged in
    found.push_back(one);
  }
  std::ranges::sort(found, {}, &NetworkInterface::name);
  return found;
}

std::string HostSensors::operatingSystem() const {
  std::ifstream file(root_ / "etc/os-release");
  const std::string key = "PRETTY_NAME=";
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    line.erase(0, key.size());
    std::erase(line, '"');
    return line;
  }
  return "unknown";
}

std::string HostSensors::processorName() const {
  std::ifstream file(root_ / "proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

std::string HostSensors::kernel() const {
  if (const auto release = firstLine(root_ / "proc/sys/kernel/osrelease")) return *release;
  utsname system{};
  return uname(&system) == 0 ? system.release : "unknown";
}

std::string HostSensors::architecture() const {
  if (const auto kind = firstLine(root_ / "proc/sys/kernel/arch")) return *kind;  // from Linux 6.1 on
  utsname system{};
  return uname(&system) == 0 ? system.machine : "unknown";
}

}  // namespace tandem::telemetry
