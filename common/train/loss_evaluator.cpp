#include "common/train/loss_evaluator.h"

#include <algorithm>
#include <limits>
#include <numbers>

#include "common/base/error.h"
#include "common/sharding/parameter_shards.h"
#include "common/sharding/rank_program.h"
#include "common/train/context_batch.h"

namespace tandem::train {
namespace {

// A sum in fixed point, whole nats and a fraction in units of 2^-32: adding is associative, so the sum is the same
// however windows are shared out over ranks and batches. The unit is far below the error of a float32 loss.
struct ExactSum {
  std::int64_t whole = 0;
  std::int64_t fraction = 0;

  void add(double value) {
    const auto integer = static_cast<std::int64_t>(value);
    whole += integer;
    fraction += static_cast<std::int64_t>((value - static_cast<double>(integer)) * 0x1p32);
    whole += fraction >> 32;
    fraction &= 0xffffffff;
  }
  double value() const { return static_cast<double>(whole) + static_cast<double>(fraction) * 0x1p-32; }
};

graph::Program evaluationProgram(const model::Configuration& configuration, std::int64_t rows,
                                 std::int64_t sequenceLength, const runtime::ParameterStore& parameters,
                                 RankGroups* groups) {
  const base::DType storage = parameters.storage();
  if (groups == nullptr) return lossProgram(configuration, rows, sequenceLength, storage);
  const graph::Program loss = graph::fuse(
      sharding::lossPart(configuration, rows, sequenceLength, storage, groups->grid(), groups->own()).program);
  if (!parameters.sharesWeights()) return loss;
  return sharding::shardWeights(loss, parameters.layout(), groups->device().replicas().rank());
}

}  // namespace

LossEvaluator::LossEvaluator(const model::Configuration& configuration, const runtime::ParameterStore& parameters,
                             std::int64_t rows, std::int64_t sequenceLength, const Device& device, RankGroups* groups)
    : rows_(rows),
      sequenceLength_(sequenceLength),
      groups_(groups),
      executable_(parameters.prepared(evaluationProgram(configuration, rows, sequenceLength, parameters, groups)),
                  device.backend, device.stream, device.arena) {
  if (groups != nullptr) executable_.exchangeThrough(&activations_.emplace(groups->device()));
  if (parameters.sharesWeights()) {
    executable_.gatherFrom(&weights_.emplace(parameters, groups->device().replicas()));
  }
  parameters.bindTo(executable_);
}

LossEvaluator::LossEvaluator(const model::Configuration& configuration, const runtime::ParameterStore& parameters,
                             const AdapterOptions& adapters, const runtime::ParameterStore& frozen, std::int64_t rows,
                             std::int64_t sequenceLength, const Device& device)
    : rows_(rows),
      sequenceLength_(sequenceLength),
      groups_(nullptr),
      executable_(frozen.prepared(lossProgram(configuration, rows, sequenceLength, parameters.storage(), adapters)),
                  device.backend, device.stream, device.arena) {
  parameters.bindTo(executable_);
  frozen.bindTo(executable_);
}

EvaluationResult LossEvaluator::evaluate(const data::Dataset& dataset, bool crossDocuments, std::int64_t maxTokens,
                                         comm::Communicator& communicator) {
  const std::vector<std::int32_t> byteLengths = data::tokenByteLengths(dataset.description().tokenizer);
  if (dataset.description().vocabularySize > static_cast<std::int64_t>(byteLengths.size())) {
    throw base::Error(base::ErrorKind::badData, "'" + dataset.path().string() + "' has a vocabulary of " +
                                                    std::to_string(dataset.description().vocabularySize) +
                                                    " tokens, but its /tokenizer only " +
                                                    std::to_string(byteLengths.size()) + "; encode the text again");
  }
  const std::int64_t maxWindows = maxTokens > 0 ? (maxTokens + sequenceLength_ - 1) / sequenceLength_ : -1;
  data::EvaluationStream stream(dataset, sequenceLength_, crossDocuments,
                                {.rows = rows_,
                                 .rank = groups_ != nullptr ? groups_->own().data : communicator.rank(),
                                 .ranks = groups_ != nullptr ? groups_->grid().data : communicator.size(),
                                 .maxWindows = maxWindows});
  const std::int64_t contextRanks = groups_ != nullptr ? groups_->grid().context : 1;
  std::vector<float> losses(static_cast<std::size_t>(rows_ * sequenceLength_ / contextRanks));
  ExactSum sum;
  std::int64_t targets = 0, targetBytes = 0;
  bool finite = true;
  for (std::int64_t number = 0; number < stream.batchCount(); ++number) {
    data::Batch batch = stream.next();
    if (groups_ != nullptr && groups_->grid().context > 1) {
      batch = contextBatch(batch, rows_, groups_->grid(), groups_->own());
    }
    setBatchInputs(executable_, batch, 0);
    if (activations_) activations_->waitForSends();
    executable_.run();
    targets += batch.targetCount;
    if (!executable_.has("losses")) continue;
    executable_.readOutput("losses", losses.data());
    for (std::size_t i = 0; i < losses.size(); ++i) {
      const std::int32_t target = batch.targets[i];
      if (target == data::noTarget) continue;
      if (!(losses[i] < 1e9f)) {
        finite = false;
        continue;
      }
      sum.add(static_cast<double>(losses[i]));
      targetBytes += byteLengths[static_cast<std::size_t>(target)];
    }
  }
  if (activations_) activations_->waitForSends();
  std::int64_t sums[5] = {sum.whole, sum.fraction, targets, targetBytes, finite ? 0 : 1};
  if (groups_ != nullptr && !groups_->countsLosses()) std::fill(sums, sums + 5, 0);
  communicator.allReduce({sums, base::DType::i64, 5});
  const double total = sums[4] == 0 ? ExactSum{sums[0], sums[1]}.value() : std::numeric_limits<double>::quiet_NaN();
  EvaluationResult result{.targets = sums[2], .targetBytes = sums[3]};
  if (result.targets > 0) result.loss = total / static_cast<double>(result.targets);
  if (result.targetBytes > 0)
    result.bitsPerByte = total / (std::numbers::ln2 * static_cast<double>(result.targetBytes));
  return result;
}

std::vector<double> LossEvaluator::logProbabilities(const data::Dataset& dataset, comm::Communicator& communicator) {
  const auto count = static_cast<std::size_t>(dataset.documentCount());
  std::vector<double> values(2 * count);  // and behind them, how often a document was met
  data::EvaluationStream stream(dataset, sequenceLength_, false,
                                {.rows = rows_, .rank = communicator.rank(), .ranks = communicator.size()});
  std::vector<float> losses(static_cast<std::size_t>(rows_ * sequenceLength_));
  for (std::int64_t number = 0; number < stream.batchCount(); ++number) {
    const data::Batch batch = stream.next();
    setBatchInputs(executable_, batch, 0);
    executable_.run();
    executable_.readOutput("losses", losses.data());
    const std::vector<double> found = documentLogProbabilities(batch, losses);
    for (std::size_t i = 0; i < found.size(); ++i) {
      const auto document = static_cast<std::size_t>(batch.documents[i].document);
      values[document] = found[i];
      values[count + document] = 1;
    }
  }
  communicator.allReduce({values.data(), base::DType::f64, std::ssize(values)});
  for (std::size_t i = 0; i < count; ++i) {
    if (values[count + i] == 0) values[i] = noLogProbability;
  }
  values.resize(count);
  return values;
}

}  // namespace tandem::train
