#include "common/train/run_journal.h"

#include <cstdio>

#include "common/base/error.h"
#include "common/base/files.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/units.h"

namespace tandem::train {
namespace {

using Clock = std::chrono::steady_clock;

std::string percent(double share) {
  char text[16];
  std::snprintf(text, sizeof text, "%.0f %%", 100 * share);
  return text;
}

void tellOf(const telemetry::EvaluationMetrics& m) {
  char numbers[96];
  if (m.preference) {
    std::snprintf(numbers, sizeof numbers, "loss %.4f, reward margin %.4f, accuracy %.3f (%lld pairs)", m.loss,
                  m.preference->rewardMargin, m.preference->rewardAccuracy,
                  static_cast<long long>(m.preference->pairs));
  } else {
    std::snprintf(numbers, sizeof numbers, "loss %.4f, perplexity %.2f, %.4f bits per byte (%lld tokens)", m.loss,
                  m.perplexity(), m.bitsPerByte, static_cast<long long>(m.tokens));
  }
  TANDEM_LOG(info) << "step " << m.step << " on " << m.evaluation << ": " << numbers;
}

}  // namespace

RunJournal::RunJournal(const TrainOptions& options, std::string description)
    : options_(options), description_(std::move(description)), metrics_(options.output / "metrics.jsonl") {}

void RunJournal::begin(std::int64_t step, std::int64_t evaluatedStep, int ranks) {
  metrics_.cutBackTo(step, evaluatedStep);
  tensorBoard_.emplace(options_.output / "tensorboard", step);
  events_.emplace(options_.output / "events.jsonl");
  note(step, step > 0 ? "resume" : "start", "on " + std::to_string(ranks) + " ranks");
  base::replaceFile(options_.output / "run.json", description_ + "\n");
}

void RunJournal::add(telemetry::StepMetrics m) {
  if (options_.telemetry) {
    if (const std::optional<std::string> spike = lossWatch_.add(m.loss)) {
      TANDEM_LOG(warning) << "step " << m.step << ": " << *spike;
      note(m.step, "loss_spike", *spike);
    }
    metrics_.append(telemetry::toJson(m));
    tensorBoard_->append(m);
  }
  tellOf(m);
  lastStep_ = std::move(m);
}

void RunJournal::add(const telemetry::EvaluationMetrics& m) {
  lastEvaluations_.push_back(telemetry::toJson(m));
  metrics_.append(lastEvaluations_.back());
  tensorBoard_->append(m);
  train::tellOf(m);
}

void RunJournal::addSample(std::int64_t step, const std::string& prompt, const std::string& text) {
  events_->append({.step = step, .kind = "sample", .text = text, .prompt = prompt});
  // A line, and whole characters, whatever an untrained model writes.
  TANDEM_LOG(info) << "step " << step << " writes: " << base::lenientJsonText(nlohmann::json(prompt + text));
}

void RunJournal::note(std::int64_t step, const std::string& kind, const std::string& text) {
  events_->append({.step = step, .kind = kind, .text = text, .prompt = {}});
}

void RunJournal::describe(const std::string& field, const std::string& text) {
  auto description = base::parseOrderedJson(description_);
  description[field] = text;
  description_ = base::jsonText(description, 2);
  base::replaceFile(options_.output / "run.json", description_ + "\n");
}

void RunJournal::sync() {
  metrics_.sync();
  tensorBoard_->sync();
  events_->sync();
}

void RunJournal::writeReport() {
  const Clock::time_point begin = Clock::now();
  try {
    const std::string metrics = base::readFile(options_.output / "metrics.jsonl");
    const std::string events = base::readFile(options_.output / "events.jsonl");
    base::replaceFile(options_.output / "report.html",
                      telemetry::reportHtml(telemetry::readRecord(metrics, description_, events)));
  } catch (const base::Error& error) {
    TANDEM_LOG(warning) << "report.html was not written: " << error.message();
  }
  reportPace_.wrote(begin, Clock::now());
}

nlohmann::ordered_json RunJournal::summary() const {
  using Json = nlohmann::ordered_json;
  Json evaluations = Json::array();
  for (const std::string& evaluation : lastEvaluations_) evaluations.push_back(base::parseOrderedJson(evaluation));
  return {{"step", lastStep_ ? base::parseOrderedJson(telemetry::toJson(*lastStep_)) : Json(nullptr)},
          {"evaluations", evaluations}};
}

void RunJournal::tellOf(const telemetry::StepMetrics& m) {
  if (Clock::now() - lastLine_ < std::chrono::seconds(10) && m.step != options_.steps) return;
  lastLine_ = Clock::now();
  char numbers[96];
  std::snprintf(numbers, sizeof numbers, "loss %.4f, gradient norm %.3f, %.0f tokens/s", m.loss, m.gradientNorm,
                m.tokensPerSecond);
  char rewards[64] = "";
  if (m.preference) {
    std::snprintf(rewards, sizeof rewards, ", reward margin %.3f, accuracy %.2f", m.preference->rewardMargin,
                  m.preference->rewardAccuracy);
  }
  const double stepSeconds = m.stepSeconds - m.checkpointSeconds;
  const double left = stepSeconds * static_cast<double>(options_.steps - m.step);
  TANDEM_LOG(info) << "step " << m.step << "/" << options_.steps << ": " << numbers << rewards << ", "
                   << percent(*m.matrixRateShare) << " of the matrix rate, waiting "
                   << percent(m.waitSeconds / stepSeconds) << ", " << base::formatDuration(left) << " left";
}

}  // namespace tandem::train
