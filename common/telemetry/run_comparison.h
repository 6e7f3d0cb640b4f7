#pragma once
// Runs side by side: how far they came, how fast, and in which options they differ.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/telemetry/run_record.h"

namespace tandem::telemetry {

struct ComparedRun {
  std::string name;  // as it was given
  RunRecord record;
};

struct RunSummary {
  std::string name;
  std::int64_t steps = 0;
  double tokens = 0;
  std::optional<double> loss;             // mean over the last twentieth of its steps
  std::optional<double> lossAtShared;     // the same up to where the shortest run ends, in tokens
  std::optional<double> evaluationLoss;   // the best on the first dataset that the first run evaluates
  std::optional<double> tokensPerSecond;  // medians over steps, as the next two
  std::optional<double> mfu;
  std::optional<double> tokensPerJoule;
  double seconds = 0;  // of all steps
};

// An option, or the version or the hosts, in which the runs differ; by run, and nothing where a run has none.
struct Difference {
  std::string option;
  std::vector<std::optional<std::string>> values;
};

struct RunComparison {
  double sharedTokens = 0;  // that every run has seen
  std::string evaluation;   // the dataset of evaluationLoss; empty for none
  std::vector<RunSummary> runs;
  std::vector<Difference> differences;
};

// Of at least one run; `output` is passed over as an option, which every run has to itself.
RunComparison compareRuns(const std::vector<ComparedRun>& runs);

std::string toText(const RunComparison& comparison);  // a table for the terminal
std::string toJson(const RunComparison& comparison);
// Curves of all runs over steps, tokens and time, and the tables; one file without network or script.
std::string toHtml(const RunComparison& comparison, const std::vector<ComparedRun>& runs);

}  // namespace tandem::telemetry
