#include "common/train/preference.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "common/base/error.h"
#include "common/base/json.h"

namespace tandem::train {
namespace {

// log(1 + e^x)
double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

std::string PreferenceOptions::json() const {
  return base::jsonText(nlohmann::json{{"name", "dpo"}, {"beta", beta}, {"label_smoothing", labelSmoothing}});
}

void check(const PreferenceOptions& options) {
  const auto demand = [](bool holds, const char* what) {
    if (!holds) throw base::Error(base::ErrorKind::usage, what);
  };
  demand(options.beta > 0 && std::isfinite(options.beta), "--beta must be a number above 0");
  demand(options.labelSmoothing >= 0 && options.labelSmoothing < 0.5,
         "--label-smoothing must be at least 0 and below 0.5");
}

void PreferenceSums::reduce(comm::Communicator& communicator) {
  double sums[] = {loss, rewardChosen, rewardRejected, right, pairs};
  communicator.allReduce({sums, base::DType::f64, 5});
  loss = sums[0];
  rewardChosen = sums[1];
  rewardRejected = sums[2];
  right = sums[3];
  pairs = sums[4];
}

telemetry::PreferenceMetrics PreferenceSums::means() const {
  const double count = std::max(pairs, 1.0);
  return {.rewardChosen = rewardChosen / count,
          .rewardRejected = rewardRejected / count,
          .rewardMargin = (rewardChosen - rewardRejected) / count,
          .rewardAccuracy = right / count,
          .pairs = static_cast<std::int64_t>(pairs)};
}

double addPair(const PreferenceOptions& options, const PairLogProbabilities& model,
               const PairLogProbabilities& reference, PreferenceSums& sums) {
  const double smoothing = options.labelSmoothing;
  const double chosen = options.beta * (model.chosen - reference.chosen);
  const double rejected = options.beta * (model.rejected - reference.rejected);
  const double margin = chosen - rejected;
  sums.loss += (1 - smoothing) * softplus(-margin) + smoothing * softplus(margin);
  sums.rewardChosen += chosen;
  sums.rewardRejected += rejected;
  sums.right += margin > 0 ? 1 : 0;
  sums.pairs += 1;
  return options.beta * (smoothing * sigmoid(margin) - (1 - smoothing) * sigmoid(-margin));
}

std::vector<double> documentLogProbabilities(const data::Batch& batch, std::span<const float> losses) {
  std::vector<double> values;
  for (const data::Batch::Document& document : batch.documents) {
    double sum = 0;
    for (std::int64_t i = document.begin; i < document.begin + document.count; ++i) {
      sum -= static_cast<double>(losses[static_cast<std::size_t>(i)]);
    }
    values.push_back(sum);
  }
  return values;
}

std::vector<float> tokenWeights(const PreferenceOptions& options, const data::Batch& batch,
                                std::span<const double> model, const LogProbabilities& reference, double scale,
                                PreferenceSums& sums) {
  std::vector<float> weights(batch.tokens.size());
  const auto referenceOf = [&](const data::Batch::Document& document) {
    return reference.at(static_cast<std::size_t>(document.dataset)).at(static_cast<std::size_t>(document.document));
  };
  const auto weigh = [&](const data::Batch::Document& document, double weight) {
    std::fill_n(weights.begin() + document.begin, document.count, static_cast<float>(scale * weight));
  };
  TANDEM_ASSERT(batch.documents.size() % 2 == 0 && model.size() == batch.documents.size(), "rows hold whole pairs");
  for (std::size_t i = 0; i < model.size(); i += 2) {
    const data::Batch::Document &chosen = batch.documents[i], &rejected = batch.documents[i + 1];
    const double gradient =
        addPair(options, {model[i], model[i + 1]}, {referenceOf(chosen), referenceOf(rejected)}, sums);
    weigh(chosen, -gradient);  // a loss is the negative of a log probability
    weigh(rejected, gradient);
  }
  return weights;
}

PreferenceSums sumOfPairs(const PreferenceOptions& options, std::span<const double> model,
                          std::span<const double> reference) {
  PreferenceSums sums;
  for (std::size_t i = 0; i + 1 < model.size(); i += 2) {
    if (std::isnan(reference[i])) continue;  // the pair was left out
    addPair(options, {model[i], model[i + 1]}, {reference[i], reference[i + 1]}, sums);
  }
  return sums;
}

graph::Program weighTokens(graph::Program program) {
  const std::int64_t tokens = program.tensor(program.find("losses")).shape.count();
  program.tensor(program.find("gradScale")).shape = {tokens};
  return program;
}

}  // namespace tandem::train
