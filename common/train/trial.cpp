#include "common/train/trial.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "common/base/files.h"
#include "common/base/units.h"
#include "common/telemetry/median.h"
#include "common/telemetry/run_record.h"
#include "common/train/trainer.h"

namespace tandem::train {
namespace {

using nlohmann::json;

// The first steps choose algorithms and touch memory for the first time.
constexpr std::size_t stepsToSettle = 3;

std::vector<json> settled(std::vector<json> steps) {
  const std::size_t first = std::min(stepsToSettle, steps.size() - 1);
  steps.erase(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(first));
  return steps;
}

// 0 where no step tells.
double medianOf(const std::vector<json>& steps, const char* name) {
  const std::vector<double> values = telemetry::valuesOf(steps, name);
  return values.empty() ? 0 : telemetry::median(values);
}

std::int64_t checkpointsOf(const TrainOptions& options) {
  return options.checkpointEvery > 0 ? (options.steps + options.checkpointEvery - 1) / options.checkpointEvery : 1;
}

TrainOptions trialOptions(TrainOptions options, std::int64_t steps) {
  options.output = options.output.string() + ".preflight-trial";
  options.steps = steps;
  options.schedule.warmupSteps = std::min(options.schedule.warmupSteps, steps);
  options.checkpointEvery = std::max<std::int64_t>(1, steps / 2);
  options.keep = 1;
  options.validation.clear();
  options.evaluateEvery = 0;
  options.timeLimit = std::chrono::seconds{0};
  options.resume = "auto";
  options.profile = false;
  options.telemetry = true;  // which it is judged by
  return options;
}

// Watts of all devices and of all hosts' packages; absent where a rank has none.
void addEnergy(comm::Communicator& world, const telemetry::HealthSummary& health, telemetry::TrialFacts& facts) {
  const auto watts = [&](const std::optional<double>& joules) {
    return joules && health.seconds > 0 ? *joules / health.seconds : -1;
  };
  const double sharers = world.ranksOnThisHost();
  const double device = watts(health.deviceJoules), host = watts(health.hostJoules) / sharers;
  const auto sum = [&](double own) {
    const bool all = comm::allReduceScalar(world, own, comm::Reduction::minimum) >= 0;
    const double total = comm::allReduceScalar(world, own);
    return all ? std::optional(total) : std::nullopt;
  };
  const std::optional<double> devices = sum(device), hosts = sum(host);
  if (!devices && !hosts) return;
  facts.joules = (devices.value_or(0) + hosts.value_or(0)) * facts.stepSeconds;
  facts.joulesOf = devices && hosts ? "the devices and the processors' packages"
                   : devices        ? "the devices"
                                    : "the processors' packages";
}

}  // namespace

telemetry::TrialFacts trialFacts(const std::string& metrics, const TrainOptions& options, const TrialOptions& trial,
                                 int ranks) {
  const std::vector<json> steps = telemetry::readRecord(metrics, "").steps;
  telemetry::TrialFacts facts{.steps = static_cast<std::int64_t>(steps.size()), .stepsOfTheRun = options.steps};
  if (steps.empty()) return facts;
  facts.finite = std::ranges::none_of(steps, [](const json& step) { return step.at("skipped").get<bool>(); });
  facts.checkpointSeconds = std::ranges::max(telemetry::valuesOf(steps, "checkpoint_seconds"));
  const std::vector<json> usual = settled(steps);
  std::vector<double> seconds = telemetry::valuesOf(usual, "step_seconds");
  const std::vector<double> saves = telemetry::valuesOf(usual, "checkpoint_seconds");
  std::ranges::transform(seconds, saves, seconds.begin(), std::minus());
  facts.stepSeconds = telemetry::median(seconds);
  facts.waitShare = medianOf(usual, "wait_seconds") / facts.stepSeconds;
  facts.communicationShare = medianOf(usual, "communication_seconds") / facts.stepSeconds;
  facts.dataShare = medianOf(usual, "data_seconds") / facts.stepSeconds;
  facts.tokensPerSecond = static_cast<double>(options.batchTokens) / facts.stepSeconds;
  facts.modelFlopsPerSecond = medianOf(usual, "model_flops_per_second");
  facts.checkpoints = checkpointsOf(options);
  if (trial.peakFlops) {
    facts.mfu = facts.modelFlopsPerSecond / (*trial.peakFlops * ranks);
    facts.mfuOf = base::formatFlops(*trial.peakFlops) + "/s a device (" + trial.peakSource + ")";
  } else {
    facts.mfu = medianOf(usual, "matrix_rate_share");
    facts.mfuOf = "the rate that matrix products reach here (no peak is known)";
  }
  return facts;
}

telemetry::TrialFacts runTrial(comm::Communicator& world, const Device& device, const TrainOptions& options,
                               const TrialOptions& trial, telemetry::HealthSampler& sampler) {
  const TrainOptions short_ = trialOptions(options, std::min(trial.steps, options.steps));
  const auto clear = [&] {
    std::error_code ignored;  // on a shared disk another rank may have done it
    world.barrier();
    if (world.rank() == 0) std::filesystem::remove_all(short_.output, ignored);
    world.barrier();
    std::filesystem::remove_all(short_.output, ignored);
    world.barrier();
  };
  clear();
  std::string metrics;
  {
    Trainer trainer(world, device, short_, "{}");
    sampler.sampleAndTake();
    trainer.run();
  }
  const telemetry::HealthSummary health = sampler.sampleAndTake();
  comm::agreeOn(world, [&] {
    if (world.rank() == 0) metrics = base::readFile(short_.output / "metrics.jsonl");
  });
  metrics = comm::broadcastText(world, metrics, 0);
  clear();
  telemetry::TrialFacts facts = trialFacts(metrics, options, trial, world.size());
  addEnergy(world, health, facts);
  return facts;
}

}  // namespace tandem::train
