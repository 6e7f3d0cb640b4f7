#pragma once
// What a training run learns of its ranks' health at each step: one exchange of a few numbers between all ranks, filled
// from a sampler thread, and watched for stragglers.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/comm/communicator.h"
#include "common/telemetry/health_sampler.h"
#include "common/telemetry/straggler.h"

namespace tandem::telemetry {

struct StepObservation {
  std::vector<RankReport> ranks;
  std::int64_t peakMemoryBytes = 0;    // the largest of all ranks
  std::optional<double> powerWatts;    // of all ranks; absent when one does not tell
  std::optional<Straggler> straggler;  // newly found
};

class RunHealth {
 public:
  // `device` may be null. `exchangedBytes`: what a rank sends in a step. Ranks whose work differs (the stages of a
  // pipeline) cannot be told from stragglers, so without `equalWork` nobody is named. Collective.
  RunHealth(comm::Communicator& ranks, std::unique_ptr<DeviceSensors> device, double exchangedBytes, bool equalWork);

  // `own` holds this rank's times; the rest is filled in here. Collective; the same result on every rank.
  StepObservation observe(RankReport own);

 private:
  void fill(RankReport& report);

  comm::Communicator& ranks_;
  bool hasDevice_;
  bool equalWork_;
  HealthSampler sampler_;
  StragglerWatch watch_;
  RankReport lastSeen_;  // what a step shorter than the sampler's interval still stands for
};

}  // namespace tandem::telemetry
