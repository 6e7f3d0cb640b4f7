#include "common/telemetry/run_health.h"

#include <algorithm>
#include <cmath>

#include "common/telemetry/metrics.h"

namespace tandem::telemetry {
namespace {

// A sample takes a millisecond or so; where there are many processors to ask, longer: then there are fewer samples.
constexpr std::chrono::milliseconds interval{1000};
constexpr double mostShare = 0.001;  // of the time

void keep(double& last, const std::optional<double>& value) {
  if (value) last = *value;
}
std::optional<double> mean(const std::optional<Range>& range) {
  return range ? std::optional(range->mean) : std::nullopt;
}

}  // namespace

RunHealth::RunHealth(comm::Communicator& ranks, std::unique_ptr<DeviceSensors> device, double exchangedBytes,
                     bool equalWork)
    : ranks_(ranks),
      hasDevice_(device != nullptr),
      equalWork_(equalWork),
      sampler_(std::move(device), HostSensors(), interval, mostShare),
      watch_(comm::allGatherTexts(ranks, base::identity().host), exchangedBytes) {}

// Adds to the times of a step what the sampler saw; a step shorter than its interval stands for what was seen last.
void RunHealth::fill(RankReport& report) {
  const HealthSummary health = sampler_.take();
  keep(lastSeen_.clockMegahertz, mean(hasDevice_ ? health.deviceClockMegahertz : health.hostClockMegahertz));
  keep(lastSeen_.temperatureCelsius,
       mean(hasDevice_ ? health.deviceTemperatureCelsius : health.hostTemperatureCelsius));
  if (hasDevice_) {
    keep(lastSeen_.powerWatts, mean(health.devicePowerWatts));
  } else if (health.hostJoules && health.seconds > 0) {
    lastSeen_.powerWatts = *health.hostJoules / health.seconds / ranks_.ranksOnThisHost();
  }
  if (health.throttleReasons) lastSeen_.throttleReasons = static_cast<double>(*health.throttleReasons);
  keep(lastSeen_.stolenShare, health.stolenShare);
  keep(lastSeen_.busyShare, health.busyShare);
  keep(lastSeen_.ownShare, health.ownShare);
  if (health.leastAvailableBytes) lastSeen_.availableBytes = static_cast<double>(*health.leastAvailableBytes);
  report.clockMegahertz = lastSeen_.clockMegahertz;
  report.powerWatts = lastSeen_.powerWatts;
  report.temperatureCelsius = lastSeen_.temperatureCelsius;
  report.throttleReasons = lastSeen_.throttleReasons;
  report.stolenShare = lastSeen_.stolenShare;
  report.busyShare = lastSeen_.busyShare;
  report.ownShare = lastSeen_.ownShare;
  report.availableBytes = lastSeen_.availableBytes;
  if (health.majorFaults) report.majorFaults = static_cast<double>(*health.majorFaults);
  report.peakMemoryBytes = static_cast<double>(peakResidentBytes());
}

StepObservation RunHealth::observe(RankReport own) {
  fill(own);
  const auto size = static_cast<std::size_t>(ranks_.size());
  StepObservation seen{.ranks = std::vector<RankReport>(size)};
  const std::vector<std::int64_t> counts(size, numbersOfReport);
  ranks_.allGather({&own, base::DType::f64, numbersOfReport},
                   {seen.ranks.data(), base::DType::f64, numbersOfReport * ranks_.size()}, counts);
  double watts = 0;
  for (const RankReport& rank : seen.ranks) {
    seen.peakMemoryBytes = std::max(seen.peakMemoryBytes, static_cast<std::int64_t>(rank.peakMemoryBytes));
    watts += rank.powerWatts;
  }
  if (!std::isnan(watts)) seen.powerWatts = watts;
  if (equalWork_) seen.straggler = watch_.add(seen.ranks);
  return seen;
}

}  // namespace tandem::telemetry
