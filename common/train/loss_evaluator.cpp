#include "common/train/loss_evaluator.h"

#include <algorithm>
#include <limits>
#include <numbers>

#include "common/base/error.h"
#include "common/sharding/parameter_shards.h"
#include "common/sharding/pipeline.h"
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

// Of each run of layers that this rank has.
std::vector<graph::Program> evaluationPrograms(const model::Configuration& configuration, std::int64_t rows,
                                               std::int64_t sequenceLength, const runtime::ParameterStore& parameters,
                                               RankGroups* groups) {
  const base::DType storage = parameters.storage();
  if (groups == nullptr) return {lossProgram(configuration, rows, sequenceLength, storage)};
  std::vector<graph::Program> programs;
  for (const sharding::PartitionedProgram& part :
       sharding::lossParts(configuration, rows, sequenceLength, storage, groups->grid(), groups->own())) {
    programs.push_back(graph::fuse(part.program));
    if (!parameters.sharesWeights()) continue;
    const int replica = groups->device().replicas().rank();
    programs.back() = sharding::shardWeights(programs.back(), parameters.layout(), replica);
  }
  return programs;
}

}  // namespace

LossEvaluator::LossEvaluator(const model::Configuration& configuration, const runtime::ParameterStore& parameters,
                             std::int64_t rows, std::int64_t sequenceLength, const Device& device, RankGroups* groups)
    : rows_(rows), sequenceLength_(sequenceLength), groups_(groups) {
  for (const graph::Program& program : evaluationPrograms(configuration, rows, sequenceLength, parameters, groups)) {
    Run& run = runs_.emplace_back();
    run.executable = std::make_unique<runtime::Executable>(parameters.prepared(program), device.backend, device.stream,
                                                           device.arena);
    if (groups != nullptr) {
      run.activations = std::make_unique<runtime::ActivationExchange>(groups->device());
      run.executable->exchangeThrough(run.activations.get());
    }
    if (parameters.sharesWeights()) {
      run.weights = std::make_unique<runtime::WeightGathering>(parameters, groups->device().replicas());
      run.executable->gatherFrom(run.weights.get());
    }
    parameters.bindTo(*run.executable);
  }
  const std::int64_t contextRanks = groups != nullptr ? groups->grid().context : 1;
  losses_.resize(static_cast<std::size_t>(rows * sequenceLength / contextRanks));
}

LossEvaluator::LossEvaluator(const model::Configuration& configuration, const runtime::ParameterStore& parameters,
                             const AdapterOptions& adapters, const runtime::ParameterStore& frozen, std::int64_t rows,
                             std::int64_t sequenceLength, const Device& device)
    : rows_(rows), sequenceLength_(sequenceLength), groups_(nullptr) {
  Run& run = runs_.emplace_back();
  run.executable = std::make_unique<runtime::Executable>(
      frozen.prepared(lossProgram(configuration, rows, sequenceLength, parameters.storage(), adapters)), device.backend,
      device.stream, device.arena);
  parameters.bindTo(*run.executable);
  frozen.bindTo(*run.executable);
  losses_.resize(static_cast<std::size_t>(rows * sequenceLength));
}

struct LossEvaluator::Sums {
  ExactSum losses;
  std::int64_t targets = 0, targetBytes = 0;
  bool finite = true;
};

// As many as go through an interleaved pipeline together; else one.
std::vector<data::Batch> LossEvaluator::nextBatches(data::EvaluationStream& stream, std::int64_t left) const {
  const std::int64_t together = groups_ != nullptr ? groups_->grid().microBatchUnit() : 1;
  std::vector<data::Batch> batches;
  while (std::ssize(batches) < std::min(left, together)) {
    batches.push_back(stream.next());
    if (groups_ != nullptr && groups_->grid().context > 1) {
      batches.back() = contextBatch(batches.back(), rows_, groups_->grid(), groups_->own());
    }
  }
  return batches;
}

void LossEvaluator::compute(Run& run, const data::Batch& batch) {
  setBatchInputs(*run.executable, batch, 0);
  if (run.activations) run.activations->waitForSends();
  run.executable->run();
  if (run.executable->has("losses")) run.executable->readOutput("losses", losses_.data());
}

void LossEvaluator::addLosses(const data::Batch& batch, const std::vector<std::int32_t>& byteLengths, Sums& sums) {
  for (std::size_t i = 0; i < losses_.size(); ++i) {
    const std::int32_t target = batch.targets[i];
    if (target == data::noTarget) continue;
    if (!(losses_[i] < 1e9f)) {
      sums.finite = false;
      continue;
    }
    sums.losses.add(static_cast<double>(losses_[i]));
    sums.targetBytes += byteLengths[static_cast<std::size_t>(target)];
  }
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
  Sums own;
  for (std::int64_t left = stream.batchCount(); left > 0;) {
    const std::vector<data::Batch> batches = nextBatches(stream, left);
    left -= std::ssize(batches);
    for (const data::Batch& batch : batches) own.targets += batch.targetCount;
    for (const sharding::StageTask& task :
         sharding::forwardSchedule(static_cast<int>(runs_.size()), std::ssize(batches))) {
      Run& run = runs_[static_cast<std::size_t>(task.run)];
      const data::Batch& batch = batches[static_cast<std::size_t>(task.microBatch)];
      compute(run, batch);
      if (run.executable->has("losses")) addLosses(batch, byteLengths, own);
    }
  }
  for (const Run& run : runs_) {
    if (run.activations) run.activations->waitForSends();
  }
  std::int64_t sums[5] = {own.losses.whole, own.losses.fraction, own.targets, own.targetBytes, own.finite ? 0 : 1};
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
  for (std::int64_t number = 0; number < stream.batchCount(); ++number) {
    const data::Batch batch = stream.next();
    compute(runs_.front(), batch);
    const std::vector<double> found = documentLogProbabilities(batch, losses_);
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
