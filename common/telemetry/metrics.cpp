#include "common/telemetry/metrics.h"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/base/files.h"

namespace tandem::telemetry {
namespace {

using Json = nlohmann::ordered_json;

// JSON has no infinities; a value that is none is null.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }
Json number(const std::optional<double>& value) { return value ? number(*value) : Json(nullptr); }

}  // namespace

double EvaluationMetrics::perplexity() const { return std::exp(loss); }

namespace {

// Six digits are more than any of these is worth.
Json rounded(double value) {
  if (!std::isfinite(value)) return nullptr;
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return std::strtod(text, nullptr);
}

// The values of all ranks under one name; nothing when none has one.
void addByRank(Json& line, const char* name, const std::vector<RankReport>& ranks, double RankReport::*value) {
  Json values = Json::array();
  bool any = false;
  for (const RankReport& rank : ranks) {
    values.push_back(rounded(rank.*value));
    any = any || std::isfinite(rank.*value);
  }
  if (any) line[name] = std::move(values);
}

void addRanks(Json& line, const std::vector<RankReport>& ranks) {
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

void addPreference(Json& line, const PreferenceMetrics& m) {
  line["reward_chosen"] = number(m.rewardChosen);
  line["reward_rejected"] = number(m.rewardRejected);
  line["reward_margin"] = number(m.rewardMargin);
  line["reward_accuracy"] = number(m.rewardAccuracy);
  line["pairs"] = m.pairs;
}

}  // namespace

std::string toJson(const StepMetrics& m) {
  Json line{{"step", m.step},
            {"tokens", m.tokens},
            {"loss", number(m.loss)},
            {"learning_rate", number(m.learningRate)},
            {"gradient_norm", number(m.gradientNorm)},
            {"step_seconds", number(m.stepSeconds)},
            {"compute_seconds", number(m.computeSeconds)},
            {"wait_seconds", number(m.waitSeconds)},
            {"communication_seconds", number(m.communicationSeconds)},
            {"data_seconds", number(m.dataSeconds)},
            {"checkpoint_seconds", number(m.checkpointSeconds)},
            {"tokens_per_second", number(m.tokensPerSecond)},
            {"model_flops_per_second", number(m.modelFlopsPerSecond)},
            {"mfu", number(m.mfu)},
            {"matrix_rate_share", number(m.matrixRateShare)},
            {"peak_memory_bytes", m.peakMemoryBytes},
            {"loss_scale", number(m.lossScale)},
            {"skipped", m.skipped}};
  if (m.powerWatts) {
    line["power_watts"] = rounded(*m.powerWatts);
    line["tokens_per_joule"] = rounded(m.tokensPerSecond / *m.powerWatts);
  }
  if (m.preference) addPreference(line, *m.preference);
  for (const auto& [group, norm] : m.gradientNormGroups) line["gradient_norm_groups"][group] = rounded(norm);
  addRanks(line, m.ranks);
  if (!m.straggler.empty()) line["straggler"] = m.straggler;
  return line.dump();
}

std::string toJson(const EvaluationMetrics& m) {
  if (m.preference) {
    Json line{{"step", m.step}, {"evaluation", m.evaluation}, {"loss", number(m.loss)}};
    addPreference(line, *m.preference);
    return line.dump();
  }
  return Json{{"step", m.step},
              {"evaluation", m.evaluation},
              {"loss", number(m.loss)},
              {"perplexity", number(m.perplexity())},
              {"bits_per_byte", number(m.bitsPerByte)},
              {"tokens", m.tokens}}
      .dump();
}

std::string linesUpTo(std::string_view text, std::int64_t step, std::int64_t evaluatedStep) {
  std::string kept;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const auto record = nlohmann::json::parse(line.begin(), line.end(), nullptr, false);
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
