#pragma once
// Some steps of a run, to know what it will take before it takes days.

#include <cstdint>
#include <optional>
#include <string>

#include "common/comm/communicator.h"
#include "common/telemetry/health_sampler.h"
#include "common/telemetry/preflight_facts.h"
#include "common/train/device.h"
#include "common/train/options.h"

namespace tandem::train {

struct TrialOptions {
  std::int64_t steps = 20;
  std::optional<double> peakFlops;  // of a rank's device, as its maker gives it
  std::string peakSource;
};

// Runs the first steps with everything as in the run, one checkpoint among them, in a folder beside the run's that is
// removed afterwards. `sampler` is this rank's. Collective; the same on every rank.
telemetry::TrialFacts runTrial(comm::Communicator& world, const Device& device, const TrainOptions& options,
                               const TrialOptions& trial, telemetry::HealthSampler& sampler);

// What the metrics.jsonl of a trial tells of a run.
telemetry::TrialFacts trialFacts(const std::string& metrics, const TrainOptions& options, const TrialOptions& trial,
                                 int ranks);

}  // namespace tandem::train
