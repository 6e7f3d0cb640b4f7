#pragma once
// Learning from preferences without a reward model (DPO; Rafailov et al. 2023). With log probabilities of whole answers
// under the model that learns and under a frozen reference, the reward of an answer is
//   r = beta * (log p(answer) - log p_reference(answer)),
// and the loss of a pair, h being the chosen answer's reward less the rejected one's, with a label smoothing e,
//   loss = -(1 - e) log sigmoid(h) - e log sigmoid(-h).
// Its gradient by an answer's log probability is one number, so that a step is a forward pass for the log
// probabilities, and then a step on the sum of token losses, those of each document times that number. No operator
// knows of pairs. The reference is the model that the run begins with; it is asked once, before the first step.

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "common/comm/communicator.h"
#include "common/data/batch.h"
#include "common/graph/program.h"
#include "common/telemetry/metrics.h"

namespace tandem::train {

struct PreferenceOptions {
  double beta = 0.1;
  double labelSmoothing = 0;  // the share of pairs that are taken to be labelled the wrong way round

  // As progress and run.json have it.
  std::string json() const;
};

// Throws Error of kind usage for a number out of its range.
void check(const PreferenceOptions& options);

// Sums over pairs.
struct PreferenceSums {
  double loss = 0, rewardChosen = 0, rewardRejected = 0, right = 0, pairs = 0;

  // Over all ranks. Collective.
  void reduce(comm::Communicator& communicator);
  double meanLoss() const { return pairs > 0 ? loss / pairs : 0; }
  telemetry::PreferenceMetrics means() const;
};

// The log probabilities of a pair's answers.
struct PairLogProbabilities {
  double chosen = 0, rejected = 0;
};

// Adds a pair, and returns the gradient of its loss by the chosen answer's log probability; the rejected one's is the
// negative of it.
double addPair(const PreferenceOptions& options, const PairLogProbabilities& model,
               const PairLogProbabilities& reference, PreferenceSums& sums);

// Log probabilities of documents, by dataset and document; NaN for one that is in no row.
using LogProbabilities = std::vector<std::vector<double>>;
constexpr double noLogProbability = std::numeric_limits<double>::quiet_NaN();

// Of a batch's documents, from the losses of its tokens.
std::vector<double> documentLogProbabilities(const data::Batch& batch, std::span<const float> losses);

// By what each token's loss is multiplied: `scale` times the gradient of the sum of the losses of the batch's pairs.
std::vector<float> tokenWeights(const PreferenceOptions& options, const data::Batch& batch,
                                std::span<const double> model, const LogProbabilities& reference, double scale,
                                PreferenceSums& sums);

// All pairs of a dataset.
PreferenceSums sumOfPairs(const PreferenceOptions& options, std::span<const double> model,
                          std::span<const double> reference);

// A differentiated program whose input gradScale has a number for each token, instead of one for all.
graph::Program weighTokens(graph::Program program);

}  // namespace tandem::train
