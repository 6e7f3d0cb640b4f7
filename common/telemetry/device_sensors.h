#pragma once
// What an accelerator says of itself, through NVML. The library is loaded when asked for, so that a program built with
// CUDA or without runs where there is no driver. What the driver does not report (on unified memory: its memory, on
// many devices: more) is absent, never zero: nobody is to judge by a zero that means "unknown".

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace tandem::telemetry {

// Why clocks are below what they could be: bits of NVML's clocks event reasons.
namespace throttle {
constexpr std::uint64_t softwarePowerCap = 0x04;
constexpr std::uint64_t hardwareSlowdown = 0x08;
constexpr std::uint64_t softwareThermal = 0x20;
constexpr std::uint64_t hardwareThermal = 0x40;
constexpr std::uint64_t powerBrake = 0x80;
constexpr std::uint64_t thermal = softwareThermal | hardwareThermal;
// "software thermal slowdown, power brake" of those above; "none".
std::string text(std::uint64_t reasons);
}  // namespace throttle

struct DeviceReading {
  std::optional<double> clockMegahertz;  // of the multiprocessors
  std::optional<double> powerWatts;
  std::optional<double> temperatureCelsius;
  std::optional<double> utilisation;  // 0 to 1: the time in which some kernel ran; says nothing of how fast
  std::optional<std::uint64_t> throttleReasons;
  std::optional<double> thermalSlowdownSeconds;  // counted since the driver was loaded
  std::optional<double> energyJoules;            // likewise
  std::optional<std::int64_t> freeBytes, totalBytes;
};

struct DeviceIdentity {
  std::string name, driver;
  std::optional<double> highestClockMegahertz;
};

class DeviceSensors {
 public:
  virtual ~DeviceSensors() = default;
  virtual const DeviceIdentity& identity() const = 0;
  // Asks the driver: tens of microseconds to a few milliseconds.
  virtual DeviceReading read() = 0;
};

struct OpenedSensors {
  std::unique_ptr<DeviceSensors> sensors;  // null when there are none
  std::string whyNot;
};
// Of the device with this UUID (hexadecimal digits, as kernels::Backend::deviceIdentifier gives it). `library` is the
// file of NVML; empty: the environment's TANDEM_NVML_LIBRARY, else libnvidia-ml.so.1.
OpenedSensors openNvml(const std::string& uuid, const std::string& library = "");

}  // namespace tandem::telemetry
