#include "common/train/training_step.h"

#include <chrono>
#include <cmath>

#include "common/model/transformer.h"
#include "common/sharding/data_parallel.h"

namespace tandem::train {
namespace {

using Clock = std::chrono::steady_clock;

double secondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The matrices that a fused projection consists of, in rows.
std::vector<std::int64_t> rowBlocks(const model::Configuration& c, const sharding::FlatParameter& parameter) {
  if (parameter.name.find("attention.qkv.") != std::string::npos) {
    return {c.heads * c.headSize, c.kvHeads * c.headSize, c.kvHeads * c.headSize};
  }
  if (parameter.name.find("mlp.gate_up.") != std::string::npos) return {c.mlpWidth, c.mlpWidth};
  return {parameter.shape[0]};
}

}  // namespace

graph::Program trainingProgram(const model::Configuration& configuration, std::int64_t rows,
                               std::int64_t sequenceLength, base::DType storage, graph::Recompute recompute) {
  const graph::Program forward = graph::fuse(model::buildLoss(configuration, rows, sequenceLength, storage));
  return graph::recompute(graph::fuse(graph::differentiate(forward)), recompute);
}

void setBatchInputs(runtime::Executable& executable, const data::Batch& batch, std::int64_t firstRow) {
  const std::int64_t firstValue = firstRow * batch.sequenceLength;
  executable.setInput("tokens", batch.tokens.data() + firstValue);
  executable.setInput("targets", batch.targets.data() + firstValue);
  executable.setInput("document_start", batch.documentStart.data() + firstValue);
  executable.setInput("positions", batch.positions.data() + firstValue);
}

graph::Program lossProgram(const model::Configuration& configuration, std::int64_t rows, std::int64_t sequenceLength,
                           base::DType storage) {
  return graph::fuse(model::buildLoss(configuration, rows, sequenceLength, storage));
}

std::vector<optim::ParameterTraits> parameterTraits(const model::Configuration& configuration,
                                                    const sharding::FlatLayout& layout, optim::Method method) {
  std::vector<optim::ParameterTraits> traits;
  for (const sharding::FlatParameter& parameter : layout.parameters()) {
    const bool isMatrix = parameter.shape.rank() >= 2;
    const bool inLayer = parameter.name.starts_with("layers.");
    optim::ParameterTraits own{
        .decays = isMatrix, .usesMuon = method == optim::Method::muon && isMatrix && inLayer, .rowBlocks = {}};
    if (own.usesMuon) own.rowBlocks = rowBlocks(configuration, parameter);
    traits.push_back(own);
  }
  return traits;
}

TrainingStep::TrainingStep(const model::Configuration& configuration, const TrainOptions& options,
                           const BatchShape& shape, comm::Communicator& communicator, const Device& device)
    : options_(options), shape_(shape), communicator_(communicator) {
  const graph::Program program =
      trainingProgram(configuration, shape.microBatch, options.sequenceLength, options.storage, options.recompute);
  const auto ownership = options.optimizer.method == optim::Method::muon
                             ? sharding::FlatLayout::Ownership::wholeParameters
                             : sharding::FlatLayout::Ownership::anywhere;
  const sharding::FlatLayout layout = runtime::layoutOf(program, communicator.size(), ownership);
  if (options.storage == base::DType::f16) scaler_.emplace(options.lossScale);
  parameters_ = std::make_unique<runtime::ParameterStore>(layout, device.backend, device.stream, options.storage,
                                                          runtime::ParameterStore::Gradients::held);
  optimizer_ = std::make_unique<optim::Optimizer>(
      options.optimizer, parameterTraits(configuration, layout, options.optimizer.method), *parameters_, communicator,
      device.exchangeOr(communicator), device.backend, device.stream);
  exchange_ = std::make_unique<optim::GradientExchange>(*parameters_, device.exchangeOr(communicator));
  if (shape.microBatches > 1) {
    microBatch_ = std::make_unique<runtime::Executable>(program, device.backend, device.stream, device.arena);
    parameters_->bindTo(*microBatch_);
  }
  lastMicroBatch_ = std::make_unique<runtime::Executable>(sharding::placeReduceScatters(program, layout),
                                                          device.backend, device.stream, device.arena);
  parameters_->bindTo(*lastMicroBatch_);
  losses_.resize(static_cast<std::size_t>(shape.microBatch * options.sequenceLength));
}

void TrainingStep::profileInto(runtime::Profile* profile) {
  if (microBatch_) microBatch_->profileInto(profile);
  lastMicroBatch_->profileInto(profile);
}

StepResult TrainingStep::run(const data::Batch& batch, std::int64_t step, double learningRate, std::int64_t flags) {
  TANDEM_ASSERT(batch.rows == shape_.rowsPerRank, "a batch has the rank's rows of a step");
  StepResult result;
  Clock::time_point start = Clock::now();
  result.targets = comm::allReduceScalar(communicator_, batch.targetCount);
  result.waitSeconds = secondsSince(start);

  start = Clock::now();
  if (scaler_) result.lossScale = scaler_->scale();
  const double lossScale = result.lossScale.value_or(1.0);
  const float gradScale =
      result.targets > 0 ? static_cast<float>(lossScale) / static_cast<float>(result.targets) : 0.0f;
  lossSum_ = 0;
  for (std::int64_t index = 0; index < shape_.microBatches; ++index) runMicroBatch(batch, index, gradScale);
  result.computeSeconds = secondsSince(start);

  start = Clock::now();
  exchange_->finish();
  double sums[3] = {lossSum_, (flags & stopRequested) ? 1.0 : 0.0, (flags & saveFailed) ? 1.0 : 0.0};
  communicator_.allReduce({sums, base::DType::f64, 3});
  result.loss = result.targets > 0 ? sums[0] / static_cast<double>(result.targets) : 0.0;
  result.raised = (sums[1] > 0 ? stopRequested : 0) | (sums[2] > 0 ? saveFailed : 0);
  result.gradientNorm = optimizer_->gradientNorm() / lossScale;
  result.communicationSeconds = secondsSince(start);

  result.skipped = !std::isfinite(result.loss) || !std::isfinite(result.gradientNorm);
  if (result.skipped) {
    // A loss is not scaled, so one that is not finite is no fault of the scale.
    result.overflowed = scaler_ && std::isfinite(result.loss) && scaler_->gradientsOverflowed();
    return result;
  }
  if (scaler_) scaler_->stepWasGood();
  const bool clips = options_.clipNorm > 0 && result.gradientNorm > options_.clipNorm;
  start = Clock::now();
  optimizer_->update(learningRate, (clips ? options_.clipNorm / result.gradientNorm : 1.0) / lossScale, step);
  result.computeSeconds += secondsSince(start);
  start = Clock::now();
  optimizer_->gatherWeights();
  result.communicationSeconds += secondsSince(start);
  return result;
}

void TrainingStep::runMicroBatch(const data::Batch& batch, std::int64_t index, float gradScale) {
  const bool last = index + 1 == shape_.microBatches;
  runtime::Executable& executable = last ? *lastMicroBatch_ : *microBatch_;
  setBatchInputs(executable, batch, index * shape_.microBatch);
  executable.setInput("gradScale", &gradScale);
  optim::GradientExchange* const exchange = last ? exchange_.get() : nullptr;
  if (options_.cudaGraphs) {
    executable.replay(index == 0, exchange);
  } else {
    executable.run(index == 0, exchange);
  }
  executable.readOutput("losses", losses_.data());
  for (const float loss : losses_) lossSum_ += static_cast<double>(loss);
}

}  // namespace tandem::train
