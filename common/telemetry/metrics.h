#pragma once
// What a run records of itself: metrics.jsonl, one JSON object a line, written by rank 0.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/telemetry/appended_file.h"
#include "common/telemetry/straggler.h"

namespace tandem::telemetry {

// Of learning preferences (DPO), means over pairs: a reward is beta times the log probability of an answer over what it
// was before. Accuracy: the share of pairs whose chosen answer has the larger one.
struct PreferenceMetrics {
  double rewardChosen = 0, rewardRejected = 0, rewardMargin = 0, rewardAccuracy = 0;
  std::int64_t pairs = 0;
};

// A training step. Seconds are rank 0's. The names in the file are those of the design, in snake case.
struct StepMetrics {
  std::int64_t step = 0;    // counted from 1
  std::int64_t tokens = 0;  // seen since the start of the run, over all ranks
  double loss = 0;          // mean over the step's target tokens
  double learningRate = 0;
  double gradientNorm = 0;  // before clipping
  double stepSeconds = 0;
  double computeSeconds = 0;
  double waitSeconds = 0;           // until the slowest rank arrived
  double communicationSeconds = 0;  // exchanges that no computation hid
  double dataSeconds = 0;
  double checkpointSeconds = 0;
  double tokensPerSecond = 0;
  double modelFlopsPerSecond = 0;
  std::optional<double> mfu;                    // of a known peak
  std::optional<double> matrixRateShare;        // of the matrix rate measured at the start, where no peak is known
  std::int64_t peakMemoryBytes = 0;             // resident, the largest of all ranks (of rank 0, without telemetry)
  std::optional<double> lossScale;              // float16 only: that the step was computed with
  bool skipped = false;                         // loss or gradient was not finite
  std::optional<double> powerWatts;             // of all ranks, where each tells
  std::vector<RankReport> ranks;                // written by quantity; what no rank reports is left out
  std::optional<PreferenceMetrics> preference;  // the loss is then the mean over the pairs
  std::vector<std::pair<std::string, double>> gradientNormGroups;  // by part of the model, where that is asked
  std::string straggler;  // who holds the run up, in the step that finds it out
};

struct EvaluationMetrics {
  std::int64_t step = 0;
  std::string evaluation;  // the dataset's name
  double loss = 0;
  double bitsPerByte = 0;
  std::int64_t tokens = 0;                      // targets counted
  std::optional<PreferenceMetrics> preference;  // the loss is then the mean over the pairs, and no perplexity
  double perplexity() const;
};

std::string toJson(const StepMetrics& metrics);
std::string toJson(const EvaluationMetrics& metrics);

// The lines of a metrics.jsonl up to a step, those of evaluations up to the step that was evaluated last (negative:
// none), without what is no record of ours: a last line that a crash left unfinished, say.
std::string linesUpTo(std::string_view text, std::int64_t step, std::int64_t evaluatedStep);

// Appends lines; sync makes them durable. All failures throw Error of kind file.
class MetricsFile {
 public:
  explicit MetricsFile(std::filesystem::path path) : file_(std::move(path)) {}

  void append(const std::string& line) { file_.append(line + "\n"); }
  void sync() { file_.sync(); }
  // Drops every line of a later step, or of an evaluation of a later one: what a run did after the checkpoint that it
  // resumes from, and so will do again. A last line that a crash left unfinished is dropped too.
  void cutBackTo(std::int64_t step, std::int64_t evaluatedStep);

 private:
  AppendedFile file_;
};

// The largest resident size of this process so far, in bytes; and begins anew with the size of now, where the system
// lets it.
std::int64_t peakResidentBytes();
void forgetPeakResident();

}  // namespace tandem::telemetry
