#include "common/train/trial.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "common/base/files.h"
#include "common/base/units.h"
#include "common/train/trainer.h"

namespace tandem::train {
namespace {

using nlohmann::json;

// The first steps choose algorithms and touch memory for the first time.
constexpr std::size_t stepsToSettle = 3;

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

std::vector<json> stepLines(const std::string& metrics) {
  std::vector<json> lines;
  std::istringstream text(metrics);
  for (std::string line; std::getline(text, line);) {
    json record = json::parse(line);
    if (record.contains("step_seconds")) lines.push_back(std::move(record));
  }
  return lines;
}

double medianOf(const std::vector<json>& lines, const char* name) {
  std::vector<double> values;
  for (std::size_t i = std::min(stepsToSettle, lines.size() - 1); i < lines.size(); ++i) {
    if (lines[i].at(name).is_number()) values.push_back(lines[i].at(name));
  }
  return median(values);
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
  const std::vector<json> lines = stepLines(metrics);
  telemetry::TrialFacts facts{.steps = static_cast<std::int64_t>(lines.size()), .stepsOfTheRun = options.steps};
  if (lines.empty()) return facts;
  std::vector<double> seconds, saves;
  for (const json& line : lines) {
    facts.finite = facts.finite && !line.at("skipped").get<bool>();
    saves.push_back(line.at("checkpoint_seconds"));
  }
  for (std::size_t i = std::min(stepsToSettle, lines.size() - 1); i < lines.size(); ++i) {
    seconds.push_back(lines[i].at("step_seconds").get<double>() - lines[i].at("checkpoint_seconds").get<double>());
  }
  facts.stepSeconds = median(seconds);
  facts.waitShare = medianOf(lines, "wait_seconds") / facts.stepSeconds;
  facts.communicationShare = medianOf(lines, "communication_seconds") / facts.stepSeconds;
  facts.dataShare = medianOf(lines, "data_seconds") / facts.stepSeconds;
  facts.tokensPerSecond = static_cast<double>(options.batchTokens) / facts.stepSeconds;
  facts.modelFlopsPerSecond = medianOf(lines, "model_flops_per_second");
  facts.checkpointSeconds = std::ranges::max(saves);
  facts.checkpoints = checkpointsOf(options);
  if (trial.peakFlops) {
    facts.mfu = facts.modelFlopsPerSecond / (*trial.peakFlops * ranks);
    facts.mfuOf = base::formatFlops(*trial.peakFlops) + "/s a device (" + trial.peakSource + ")";
  } else {
    facts.mfu = medianOf(lines, "matrix_rate_share");
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
