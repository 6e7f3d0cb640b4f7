#pragma once
// What a run tells of itself: metrics.jsonl, events.jsonl, TensorBoard's files, run.json and report.html in its folder,
// and a line on the console now and then. Rank 0 keeps it.

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/telemetry/event_file.h"
#include "common/telemetry/event_log.h"
#include "common/telemetry/loss_watch.h"
#include "common/telemetry/metrics.h"
#include "common/telemetry/report.h"
#include "common/train/options.h"

namespace tandem::train {

// Failures of a file throw Error of kind file.
class RunJournal {
 public:
  // `description`: the JSON of run.json. Opens metrics.jsonl and no more: begin() is for a run that is known to go on,
  // a refused command leaves the folder as it was. The options live as long.
  RunJournal(const TrainOptions& options, std::string description);

  // The run begins, or goes on after `step`: what the files have of later steps is cut off.
  void begin(std::int64_t step, std::int64_t evaluatedStep, int ranks);

  void add(telemetry::StepMetrics metrics);
  // Before the evaluations of a step: summary() has only the last ones.
  void beginEvaluations() { lastEvaluations_.clear(); }
  void add(const telemetry::EvaluationMetrics& metrics);
  void addSample(std::int64_t step, const std::string& prompt, const std::string& text);
  void note(std::int64_t step, const std::string& kind, const std::string& text);
  // Adds a text to run.json.
  void describe(const std::string& field, const std::string& text);

  // Makes all that was added durable.
  void sync();
  bool isReportDue() const { return reportPace_.isDue(telemetry::ReportPace::Clock::now()); }
  // A page that cannot be written is no reason to end a run: a warning tells of it.
  void writeReport();

  // {"step": metrics of the last one or null, "evaluations": [metrics]}
  nlohmann::ordered_json summary() const;

 private:
  void tellOf(const telemetry::StepMetrics& metrics);

  const TrainOptions& options_;
  std::string description_;
  telemetry::MetricsFile metrics_;
  std::optional<telemetry::EventFile> tensorBoard_;  // since begin(), as the next
  std::optional<telemetry::EventLog> events_;
  telemetry::LossWatch lossWatch_;
  telemetry::ReportPace reportPace_;
  std::optional<telemetry::StepMetrics> lastStep_;
  std::vector<std::string> lastEvaluations_;
  std::chrono::steady_clock::time_point lastLine_{};
};

}  // namespace tandem::train
