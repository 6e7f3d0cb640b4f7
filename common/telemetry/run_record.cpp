#include "common/telemetry/run_record.h"

#include <algorithm>

#include "common/base/json.h"

namespace tandem::telemetry {
namespace {

using nlohmann::json;

// What is larger is no count of steps, and no float64 tells it from its neighbours.
bool hasStep(const json& record) {
  constexpr double most = 0x1p53;
  if (!record.is_object() || !record.contains("step") || !record["step"].is_number()) return false;
  const auto step = record["step"].get<double>();
  return step >= 0 && step < most;
}

std::vector<json> records(std::string_view text) {
  std::vector<json> found;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    json record = base::parseJsonOrDiscard(line);
    if (hasStep(record)) found.push_back(std::move(record));
  }
  return found;
}

}  // namespace

RunRecord readRecord(std::string_view metrics, std::string_view run, std::string_view events) {
  RunRecord record;
  for (json& line : records(metrics)) {
    (line.contains("evaluation") ? record.evaluations : record.steps).push_back(std::move(line));
  }
  record.events = records(events);
  json description = base::parseJsonOrDiscard(run);
  if (!description.is_object()) return record;
  const auto options = description.find("options");
  if (options != description.end() && options->is_object()) {
    for (const auto& [name, value] : options->items()) {
      record.options[name] = value.is_string() ? value.get<std::string>() : base::jsonText(value);
    }
  }
  record.description = std::move(description);
  return record;
}

std::optional<double> numberOf(const json& record, const std::string& key) {
  const auto found = record.find(key);
  if (found == record.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

std::vector<double> valuesOf(const std::vector<json>& records, const std::string& key) {
  std::vector<double> values;
  for (const json& record : records) {
    if (const std::optional<double> value = numberOf(record, key)) values.push_back(*value);
  }
  return values;
}

}  // namespace tandem::telemetry
