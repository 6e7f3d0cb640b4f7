#pragma once
// Looks at device and host again and again from a thread of its own, while something else works, and sums up what it
// saw in between: what a unit does under load shows only under load.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "common/telemetry/device_sensors.h"
#include "common/telemetry/host_sensors.h"

namespace tandem::telemetry {

// Of a value sampled several times.
struct Range {
  double least = 0, mean = 0, most = 0;
};

// What was seen over a stretch of time. Absent: not reported.
struct HealthSummary {
  double seconds = 0;
  std::int64_t samples = 0;

  std::optional<Range> deviceClockMegahertz, devicePowerWatts, deviceTemperatureCelsius, deviceUtilisation;
  std::optional<std::uint64_t> throttleReasons;  // all that were seen
  std::optional<double> thermalSlowdownShare;    // of the time, by the driver's counters
  std::optional<double> deviceJoules;            // by its counter, else from its power
  std::optional<std::int64_t> leastDeviceFreeBytes;

  std::optional<Range> hostClockMegahertz, hostTemperatureCelsius;
  std::optional<double> stolenShare, busyShare;  // of the processors' time
  std::optional<double> ownShare;                // likewise, of this process
  std::optional<double> hostThrottleShare;       // of the processors' time, slowed down for heat
  std::optional<double> hostJoules;
  std::optional<std::int64_t> majorFaults;
  std::optional<std::int64_t> leastAvailableBytes;
};

class HealthSampler {
 public:
  // `device` may be null. Samples at once, then every interval; less often where sampling would take more than
  // `mostShare` of the time.
  HealthSampler(std::unique_ptr<DeviceSensors> device, HostSensors host, std::chrono::milliseconds interval,
                double mostShare = 1);
  ~HealthSampler();
  HealthSampler(const HealthSampler&) = delete;
  HealthSampler& operator=(const HealthSampler&) = delete;

  // Since the last call (or the start), the last sample before it included: a stretch shorter than the interval has
  // that one's values. Counters are shares of the stretch between the samples at its ends. Costs no system call.
  HealthSummary take();
  // The same, with a sample taken now as its end.
  HealthSummary sampleAndTake();

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace tandem::telemetry
