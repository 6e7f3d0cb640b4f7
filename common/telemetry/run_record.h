#pragma once
// What a run folder tells of a run, as reports and comparisons read it: metrics.jsonl and run.json, whatever stands in
// them.

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::telemetry {

struct RunRecord {
  std::vector<nlohmann::json> steps;           // lines of metrics.jsonl that have a step
  std::vector<nlohmann::json> evaluations;     // those of evaluations
  std::vector<nlohmann::json> events;          // lines of events.jsonl
  nlohmann::json description;                  // run.json; null when it is none
  std::map<std::string, std::string> options;  // of the description, as text
};

// Of the files' texts. Lines that are no record are passed over.
RunRecord readRecord(std::string_view metrics, std::string_view run, std::string_view events = {});

// A key of a record that holds a number; none otherwise.
std::optional<double> numberOf(const nlohmann::json& record, const std::string& key);

// The numbers that records have under a key, in their order.
std::vector<double> valuesOf(const std::vector<nlohmann::json>& records, const std::string& key);

}  // namespace tandem::telemetry
