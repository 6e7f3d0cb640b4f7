#pragma once
// The loss of a model over all of a dataset: the same number at any rank count and batch size.

#include <memory>
#include <vector>

#include "common/comm/communicator.h"
#include "common/data/batch_stream.h"
#include "common/model/configuration.h"
#include "common/runtime/executable.h"
#include "common/runtime/parameter_store.h"
#include "common/train/training_step.h"

namespace tandem::train {

struct EvaluationResult {
  double loss = 0;         // mean over the targets, in nats
  double bitsPerByte = 0;  // sum of losses / (ln 2 * bytes of the targets); 0 when these have no bytes
  std::int64_t targets = 0;
  std::int64_t targetBytes = 0;
};

class LossEvaluator {
 public:
  // Computes batches of `rows` rows. Without groups every rank has the whole model; they live as long.
  LossEvaluator(const model::Configuration& configuration, const runtime::ParameterStore& parameters, std::int64_t rows,
                std::int64_t sequenceLength, const Device& device, RankGroups* groups = nullptr);
  // Of a model with adapters, which are `parameters`, over ranks that each have all of it.
  LossEvaluator(const model::Configuration& configuration, const runtime::ParameterStore& parameters,
                const AdapterOptions& adapters, const runtime::ParameterStore& frozen, std::int64_t rows,
                std::int64_t sequenceLength, const Device& device);

  // Of the first maxTokens tokens (0: all). Collective.
  EvaluationResult evaluate(const data::Dataset& dataset, bool crossDocuments, std::int64_t maxTokens,
                            comm::Communicator& communicator);

  // Of each document of a dataset that has packed rows; NaN for those that are in none. Every rank has the whole model.
  // Collective.
  std::vector<double> logProbabilities(const data::Dataset& dataset, comm::Communicator& communicator);

 private:
  // A run of layers: the only one but on a rank of an interleaved pipeline.
  struct Run {
    std::unique_ptr<runtime::ActivationExchange> activations;  // with groups
    std::unique_ptr<runtime::WeightGathering> weights;         // where they are shared out
    std::unique_ptr<runtime::Executable> executable;
  };
  struct Sums;

  std::vector<data::Batch> nextBatches(data::EvaluationStream& stream, std::int64_t left) const;
  void compute(Run& run, const data::Batch& batch);
  void addLosses(const data::Batch& batch, const std::vector<std::int32_t>& byteLengths, Sums& sums);

  std::int64_t rows_;
  std::int64_t sequenceLength_;
  RankGroups* groups_;
  std::vector<Run> runs_;
  std::vector<float> losses_;  // of a batch
};

}  // namespace tandem::train
