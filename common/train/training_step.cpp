#include "common/train/training_step.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <optional>

#include "common/model/transformer.h"
#include "common/sharding/data_parallel.h"
#include "common/train/context_batch.h"
#include "common/train/quantised_weights.h"

namespace tandem::train {
namespace {

using Clock = std::chrono::steady_clock;

double secondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The matrices that a fused projection consists of, in rows. Of its adapter, B has the projection's rows, and A, which
// the projections share, is one matrix.
std::vector<std::int64_t> rowBlocks(const model::Configuration& c, const sharding::FlatParameter& parameter) {
  if (parameter.name.ends_with(".lora_a")) return {parameter.shape[0]};
  if (parameter.name.find("attention.qkv.") != std::string::npos) {
    return {c.heads * c.headSize, c.kvHeads * c.headSize, c.kvHeads * c.headSize};
  }
  if (parameter.name.find("mlp.gate_up.") != std::string::npos) return {c.mlpWidth, c.mlpWidth};
  return {parameter.shape[0]};
}

}  // namespace

sharding::FlatLayout layoutOf(std::span<const sharding::PartitionedProgram> parts, const TrainOptions& options,
                              const sharding::Grid& grid) {
  const auto ownership = options.optimizer.method == optim::Method::muon
                             ? sharding::FlatLayout::Ownership::wholeParameters
                             : sharding::FlatLayout::Ownership::anywhere;
  return sharding::layoutOf(parts, grid.sharers(), ownership,
                            sharding::bucketElements(parts, grid, options.bucketElements), grid.sharesGradients());
}

graph::Program trainingProgram(const model::Configuration& configuration, std::int64_t rows,
                               std::int64_t sequenceLength, base::DType storage, graph::Recompute recompute) {
  return sharding::trainingProgram(model::buildLoss(configuration, rows, sequenceLength, storage), recompute);
}

void setBatchInputs(runtime::Executable& executable, const data::Batch& batch, std::int64_t firstRow) {
  const std::int64_t firstValue = firstRow * batch.sequenceLength;
  const auto give = [&](const char* name, const std::vector<std::int32_t>& values) {
    if (executable.has(name)) executable.setInput(name, values.data() + firstValue);
  };
  give("tokens", batch.tokens);
  give("targets", batch.targets);
  give("document_start", batch.documentStart);
  give("positions", batch.positions);
  if (!executable.has("document_start")) return;
  // Rounded up, so that few numbers occur: each has plans and recordings of its own.
  const std::int64_t rows = executable.inputShape("document_start").count() / batch.sequenceLength;
  const std::int64_t documents = data::countDocuments(batch, firstRow, rows);
  executable.setDocuments(
      documents == rows ? rows : static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(documents))));
}

graph::Program lossProgram(const model::Configuration& configuration, std::int64_t rows, std::int64_t sequenceLength,
                           base::DType storage, const std::optional<AdapterOptions>& adapters) {
  graph::Program plain = model::buildLoss(configuration, rows, sequenceLength, storage);
  return graph::fuse(adapters ? graph::adapt(plain, adapters->forEvaluation()) : plain);
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
    : options_(options),
      shape_(shape),
      communicator_(communicator),
      groups_(communicator, device, gridOf(options, communicator.size())) {
  const sharding::Grid& grid = groups_.grid();
  const std::vector<sharding::PartitionedProgram> parts =
      sharding::lossParts(configuration, shape.microBatch, options.sequenceLength, options.storage, grid, groups_.own(),
                          adaptersOf(options.adapters));
  const sharding::FlatLayout layout = layoutOf(parts, options, grid);
  if (options.storage == base::DType::f16) scaler_.emplace(options.lossScale);
  const int replica = groups_.device().replicas().rank();
  if (grid.sharesGradients()) {
    parameters_ = std::make_unique<runtime::ParameterStore>(
        layout, device.backend, device.stream, options.storage,
        runtime::ParameterStore::Shard{.rank = replica, .weights = grid.sharesWeights()});
  } else {
    parameters_ = std::make_unique<runtime::ParameterStore>(layout, device.backend, device.stream, options.storage,
                                                            runtime::ParameterStore::Gradients::held);
  }
  optimizer_ = std::make_unique<optim::Optimizer>(
      options.optimizer, parameterTraits(configuration, layout, options.optimizer.method), *parameters_, communicator,
      groups_.device().replicas(), device.backend, device.stream);
  if (options.gradientNormGroups) gradientGroups_.emplace(configuration, layout, *optimizer_);
  const graph::Program whole = model::buildLoss(configuration, 1, 1, options.storage);
  makeExchange(sharding::sharedByStages(whole, sharding::stageLayers(whole, grid.stages())));
  schedule_ = sharding::stageSchedule(groups_.own().pipeline, grid.pipeline, grid.virtualStages, shape_.microBatches);
  for (std::size_t index = 0; index < parts.size(); ++index) {
    graph::Program program = trainingProgramOf(parts[index], device);
    program = sharding::withExchanges(program, layout, grid, replica);
    if (gathersBesideComputing()) program = sharding::placeWeightWaits(program, layout);
    Run& run = runs_.emplace_back();
    const std::int64_t inFlight = sharding::microBatchesInFlight(schedule_, static_cast<int>(index));
    while (std::ssize(run.slots) < inFlight) {
      run.slots.push_back(makeSlot(program, device, index == 0 && run.slots.empty()));
    }
  }
  losses_.resize(static_cast<std::size_t>(shape.microBatch * options.sequenceLength / groups_.grid().context));
}

// Recordings would be cut where a program waits, and FP8 looks at all weights before a step.
bool TrainingStep::gathersBesideComputing() const {
  return options_.overlap && !options_.cudaGraphs && !options_.fp8 && parameters_->layout().ranks() > 1 &&
         !parameters_->sharesWeights();
}

void TrainingStep::makeExchange(std::vector<std::string> sharedByStages) {
  sharding::GridGroups& groups = groups_.device();
  if (!sharedByStages.empty()) {
    const int stage = groups.own().pipeline;
    const bool holds = stage == 0 || stage == groups.grid().pipeline - 1;
    tiedStages_ = groups.pipeline().split(holds ? 0 : stage, stage);
  }
  exchange_ = std::make_unique<optim::GradientExchange>(
      *parameters_, groups.replicas(), &groups.tensor(),
      optim::StageShared{.parameters = std::move(sharedByStages), .holders = tiedStages_.get()},
      options_.overlap ? optim::GradientExchange::When::besideComputing : optim::GradientExchange::When::afterwards);
}

// Makes what 8-bit floats and frozen weights need of it, too: neither is split over a pipeline, so it is made once.
graph::Program TrainingStep::trainingProgramOf(const sharding::PartitionedProgram& loss, const Device& device) {
  graph::Program program = sharding::trainingProgram(loss.program, options_.recompute);
  if (options_.preference) program = weighTokens(std::move(program));
  if (options_.fp8) {
    program = graph::useFp8(program, "layers.");
    fp8_ = std::make_unique<Fp8Scaling>(graph::fp8Weights(program), device);
  }
  if (!options_.adapters) return program;
  frozen_ = makeFrozen(program, *options_.adapters, options_.storage, communicator_.size(), device);
  return frozen_->prepared(program);
}

std::unique_ptr<TrainingStep::Slot> TrainingStep::makeSlot(const graph::Program& program, const Device& device,
                                                           bool isFirst) {
  auto slot = std::make_unique<Slot>();
  slot->arena = isFirst ? device.arena : std::make_shared<runtime::Arena>(device.backend);
  slot->activations = std::make_unique<runtime::ActivationExchange>(groups_.device());
  slot->executable = std::make_unique<runtime::Executable>(program, device.backend, device.stream, slot->arena);
  slot->executable->exchangeThrough(slot->activations.get());
  if (parameters_->sharesWeights()) {
    slot->weights = std::make_unique<runtime::WeightGathering>(*parameters_, groups_.device().replicas());
    slot->executable->gatherFrom(slot->weights.get());
  } else {
    slot->executable->gatherFrom(&arrival_);
  }
  parameters_->bindTo(*slot->executable);
  if (fp8_) fp8_->bindTo(*slot->executable);
  if (frozen_) frozen_->bindTo(*slot->executable);
  return slot;
}

void TrainingStep::profileInto(runtime::Profile* profile) {
  forAllSlots([&](const Slot& slot) { slot.executable->profileInto(profile); });
}

std::vector<graph::ProgramInFlight> TrainingStep::programs() const {
  std::vector<graph::ProgramInFlight> programs;
  for (const Run& run : runs_) {
    const runtime::Executable& one = *run.slots.front()->executable;
    programs.push_back({one.program(), one.plan(), std::ssize(run.slots)});
  }
  return programs;
}

StepResult TrainingStep::run(const data::Batch& rows, std::int64_t step, double learningRate, std::int64_t flags) {
  TANDEM_ASSERT(rows.rows == shape_.rowsPerRank, "a batch has the rank's rows of a step");
  const sharding::Grid& grid = groups_.grid();
  std::optional<data::Batch> positions;
  if (grid.context > 1) positions = contextBatch(rows, shape_.microBatch, grid, groups_.own());
  const data::Batch& batch = positions ? *positions : rows;
  StepResult result;
  Clock::time_point start = Clock::now();
  result.targets = comm::allReduceScalar(communicator_, groups_.countsTokens() ? batch.targetCount : std::int64_t{0});
  result.waitSeconds = secondsSince(start);

  start = Clock::now();
  if (scaler_) result.lossScale = scaler_->scale();
  const double lossScale = result.lossScale.value_or(1.0);
  const float gradScale =
      result.targets > 0 ? static_cast<float>(lossScale) / static_cast<float>(result.targets) : 0.0f;
  lossSum_ = 0;
  takeSecondsWaited();  // between the steps
  PreferenceSums pairs;
  if (options_.preference) pairs = weighPairs(batch, lossScale);
  for (const sharding::StageTask& task : schedule_) runTask(task, batch, gradScale);
  forAllSlots([](const Slot& slot) { slot.activations->waitForSends(); });
  result.communicationSeconds = takeSecondsWaited();
  result.computeSeconds = secondsSince(start) - result.communicationSeconds;

  start = Clock::now();
  exchange_->finish();
  double sums[3] = {groups_.countsLosses() ? lossSum_ : 0.0, (flags & stopRequested) ? 1.0 : 0.0,
                    (flags & saveFailed) ? 1.0 : 0.0};
  communicator_.allReduce({sums, base::DType::f64, 3});
  result.loss = result.targets > 0 ? sums[0] / static_cast<double>(result.targets) : 0.0;
  if (options_.preference) {
    pairs.reduce(communicator_);
    result.loss = pairs.meanLoss();
    result.preference = pairs.means();
  }
  result.raised = (sums[1] > 0 ? stopRequested : 0) | (sums[2] > 0 ? saveFailed : 0);
  result.gradientNorm = optimizer_->gradientNorm() / lossScale;
  if (gradientGroups_) result.gradientNormGroups = gradientGroups_->norms(lossScale, communicator_);
  result.communicationSeconds += secondsSince(start);

  result.skipped = !std::isfinite(result.loss) || !std::isfinite(result.gradientNorm);
  if (fp8_) fp8_->endStep(result.skipped, communicator_);
  if (result.skipped) {
    // A loss is not scaled, so one that is not finite is no fault of the scale.
    result.overflowed = scaler_ && std::isfinite(result.loss) && scaler_->gradientsOverflowed();
    return result;
  }
  if (scaler_) scaler_->stepWasGood();
  start = Clock::now();
  settle();  // what no node of this rank's program reads
  result.communicationSeconds += secondsSince(start);
  const bool clips = options_.clipNorm > 0 && result.gradientNorm > options_.clipNorm;
  start = Clock::now();
  optimizer_->update(learningRate, (clips ? options_.clipNorm / result.gradientNorm : 1.0) / lossScale, step);
  result.computeSeconds += secondsSince(start);
  start = Clock::now();
  if (gathersBesideComputing()) {
    optimizer_->gatherWeights(arrival_);
  } else {
    optimizer_->gatherWeights();
  }
  result.communicationSeconds += secondsSince(start);
  return result;
}

// Since the last call, for gradients and weights that ranks which hold the same share out.
double TrainingStep::takeSecondsWaited() {
  double seconds = arrival_.takeSecondsWaited() + exchange_->takeSecondsWaited();
  forAllSlots([&](const Slot& slot) { seconds += slot.weights ? slot.weights->takeSecondsWaited() : 0; });
  return seconds;
}

// Gradients are exchanged as they become complete: in the last micro batch, or in each where nobody keeps them whole.
runtime::Collectives* TrainingStep::collectivesOf(std::int64_t index) {
  return parameters_->sharesGradients() || index + 1 == shape_.microBatches ? exchange_.get() : nullptr;
}

// A forward pass over all rows: the weights of their tokens follow from the log probabilities of their documents.
PreferenceSums TrainingStep::weighPairs(const data::Batch& batch, double lossScale) {
  const auto rowsAtOnce = static_cast<std::size_t>(shape_.microBatch * batch.sequenceLength);
  const double ownPairs = static_cast<double>(batch.documents.size() / 2);
  const double pairs = comm::allReduceScalar(communicator_, ownPairs);
  std::vector<float> losses(batch.tokens.size());
  const std::vector<float> zeros(rowsAtOnce);
  for (std::int64_t index = 0; index < shape_.microBatches; ++index) {
    Slot& slot = runs_.front().slotOf(index);
    giveInputs(slot, batch, index, zeros.data());
    slot.executable->runForward(true, nullptr);
    slot.executable->readOutput("losses", losses.data() + static_cast<std::size_t>(index) * rowsAtOnce);
  }
  PreferenceSums sums;
  tokenWeights_ = tokenWeights(*options_.preference, batch, documentLogProbabilities(batch, losses), reference_,
                               lossScale / std::max(pairs, 1.0), sums);
  return sums;
}

void TrainingStep::giveInputs(Slot& slot, const data::Batch& batch, std::int64_t index, const float* gradScale) {
  slot.activations->waitForSends();
  setBatchInputs(*slot.executable, batch, index * shape_.microBatch);
  if (slot.executable->has("gradScale")) slot.executable->setInput("gradScale", gradScale);
  if (slot.executable->has("dropout_keys")) {
    const std::vector<std::int32_t> keys =
        dropoutKeys(options_.seed, batch.firstSample + index * shape_.microBatch, shape_.microBatch);
    slot.executable->setInput("dropout_keys", keys.data());
  }
}

void TrainingStep::runTask(const sharding::StageTask& task, const data::Batch& batch, float gradScale) {
  Slot& slot = runs_[static_cast<std::size_t>(task.run)].slotOf(task.microBatch);
  if (task.isForward) {
    runForward(slot, batch, task.microBatch, gradScale);
  } else {
    runBackward(slot, task.microBatch);
  }
}

void TrainingStep::runForward(Slot& slot, const data::Batch& batch, std::int64_t index, float gradScale) {
  const std::int64_t firstToken = index * shape_.microBatch * batch.sequenceLength;
  giveInputs(slot, batch, index, options_.preference ? tokenWeights_.data() + firstToken : &gradScale);
  // A recording is of both passes; without other stages they follow each other.
  if (!options_.cudaGraphs) slot.executable->runForward(index == 0, collectivesOf(index));
}

void TrainingStep::runBackward(Slot& slot, std::int64_t index) {
  if (options_.cudaGraphs) {
    slot.executable->replay(index == 0, collectivesOf(index));
  } else {
    slot.executable->runBackward(index == 0, collectivesOf(index));
  }
  if (!slot.executable->has("losses")) return;
  slot.executable->readOutput("losses", losses_.data());
  for (const float loss : losses_) lossSum_ += static_cast<double>(loss);
}

}  // namespace tandem::train
