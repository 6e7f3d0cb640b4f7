#include "common/telemetry/metrics.h"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/base/files.h"
#include "common/base/json.h"
#include "common/telemetry/detail/json_line.h"

namespace tandem::telemetry {
namespace {

using detail::JsonLine;

// The values of all ranks under one name; nothing when none has one.
void addByRank(JsonLine& line, const char* name, const std::vector<RankReport>& ranks, double RankReport::*value) {
  if (std::ranges::none_of(ranks, [&](const RankReport& rank) { return std::isfinite(rank.*value); })) return;
  line.beginList(name);
  for (const RankReport& rank : ranks) line.addRounded(rank.*value);
  line.endList();
}

void addRanks(JsonLine& line, const std::vector<RankReport>& ranks) {
  addByRank(line, "rank_compute_seconds", ranks, &RankReport::computeSeconds);
  addByRank(line, "rank_wait_seconds", ranks, &RankReport::waitSeconds);
  addByRank(line, "rank_communication_seconds", ranks, &RankReport::communicationSeconds);
  addByRank(line, "rank_data_seconds", ranks, &RankReport::dataSeconds);
  addByRank(line, "rank_checkpoint_seconds", ranks, &RankReport::checkpointSeconds);
  addByRank(line, "rank_clock_megahertz", ranks, &RankReport::clockMegahertz);
  addByRank(line, "rank_power_watts", ranks, &RankReport::powerWatts);
  addByRank(line, "rank_temperature_celsius", ranks, &RankReport::temperatureCelsius);
  addByRank(line, "rank_throttle_reasons", ranks, &RankReport::throttleReasons);
  addByRank(line, "rank_stolen_share", ranks, &RankReport::stolenShare);
  addByRank(line, "rank_available_bytes", ranks, &RankReport::availableBytes);
  addByRank(line, "rank_major_faults", ranks, &RankReport::majorFaults);
}

void addPreference(JsonLine& line, const PreferenceMetrics& m) {
  line.add("reward_chosen", m.rewardChosen);
  line.add("reward_rejected", m.rewardRejected);
  line.add("reward_margin", m.rewardMargin);
  line.add("reward_accuracy", m.rewardAccuracy);
  line.add("pairs", m.pairs);
}

}  // namespace

double EvaluationMetrics::perplexity() const { return std::exp(loss); }

std::string toJson(const StepMetrics& m) {
  JsonLine line;
  line.add("step", m.step);
  line.add("tokens", m.tokens);
  line.add("loss", m.loss);
  line.add("learning_rate", m.learningRate);
  line.add("gradient_norm", m.gradientNorm);
  line.add("step_seconds", m.stepSeconds);
  line.add("compute_seconds", m.computeSeconds);
  line.add("wait_seconds", m.waitSeconds);
  line.add("communication_seconds", m.communicationSeconds);
  line.add("data_seconds", m.dataSeconds);
  line.add("checkpoint_seconds", m.checkpointSeconds);
  line.add("tokens_per_second", m.tokensPerSecond);
  line.add("model_flops_per_second", m.modelFlopsPerSecond);
  line.add("mfu", m.mfu);
  line.add("matrix_rate_share", m.matrixRateShare);
  line.add("peak_memory_bytes", m.peakMemoryBytes);
  line.add("loss_scale", m.lossScale);
  line.add("skipped", m.skipped);
  if (m.powerWatts) {
    line.addRounded("power_watts", *m.powerWatts);
    line.addRounded("tokens_per_joule", m.tokensPerSecond / *m.powerWatts);
  }
  if (m.preference) addPreference(line, *m.preference);
  if (!m.gradientNormGroups.empty()) {
    line.beginObject("gradient_norm_groups");
    for (const auto& [group, norm] : m.gradientNormGroups) line.addRounded(group, norm);
    line.endObject();
  }
  addRanks(line, m.ranks);
  if (!m.straggler.empty()) line.addText("straggler", m.straggler);
  return line.take();
}

std::string toJson(const EvaluationMetrics& m) {
  JsonLine line;
  line.add("step", m.step);
  line.addText("evaluation", m.evaluation);
  line.add("loss", m.loss);
  if (m.preference) {
    addPreference(line, *m.preference);
  } else {
    line.add("perplexity", m.perplexity());
    line.add("bits_per_byte", m.bitsPerByte);
    line.add("tokens", m.tokens);
  }
  return line.take();
}

std::string linesUpTo(std::string_view text, std::int64_t step, std::int64_t evaluatedStep) {
  std::string kept;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const auto record = base::parseJsonOrDiscard(line);
    // Steps are never negative, so every one of ours is read as an unsigned number.
    if (!record.is_object() || !record.contains("step") || !record["step"].is_number_unsigned()) continue;
    const std::int64_t last = record.contains("evaluation") ? std::min(step, evaluatedStep) : step;
    if (last < 0 || record["step"].get<std::uint64_t>() > static_cast<std::uint64_t>(last)) continue;
    kept += line;
    kept += '\n';
  }
  return kept;
}

void MetricsFile::cutBackTo(std::int64_t step, std::int64_t evaluatedStep) {
  const std::filesystem::path path = file_.path();
  base::replaceFile(path, linesUpTo(base::readFile(path), step, evaluatedStep));
  file_ = AppendedFile(path);
}

std::int64_t peakResidentBytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

void forgetPeakResident() { std::ofstream("/proc/self/clear_refs") << "5"; }

}  // namespace tandem::telemetry
