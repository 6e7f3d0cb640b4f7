#include "common/train/trainer.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "common/base/files.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/signals.h"
#include "common/base/units.h"
#include "common/checkpoint/chat_template.h"
#include "common/model/transformer.h"
#include "common/runtime/matrix_rate.h"
#include "common/sharding/data_parallel.h"
#include "common/telemetry/device_limits.h"
#include "common/train/model_state.h"
#include "common/train/quantised_weights.h"

namespace tandem::train {
namespace {

using base::Error;
using base::ErrorKind;
using Clock = std::chrono::steady_clock;
using nlohmann::json;

double secondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Whether a step stands in a run folder, intact or not: a run whose steps are all damaged must not start over unasked.
bool holdsSteps(const std::filesystem::path& run) {
  std::error_code ignored;  // no folder: no steps
  for (const auto& entry : std::filesystem::directory_iterator(run / "checkpoints", ignored)) {
    const std::filesystem::path name = entry.path().filename();
    if (name.string().starts_with("step-") && name.extension().empty()) return true;
  }
  return false;
}

// "seed was 1 and is now 2, ..." for every field that differs, or that only one has.
std::string changedFields(const json& before, const json& now) {
  json both = before;
  both.update(now);
  std::string text;
  for (const auto& [field, value] : both.items()) {
    const json old = before.value(field, json()), fresh = now.value(field, json());
    if (old != fresh)
      text +=
          (text.empty() ? "" : ", ") + field + " was " + base::jsonText(old) + " and is now " + base::jsonText(fresh);
  }
  return text;
}

// A finetuning begins with a whole model of ours.
checkpoint::Metadata metadataOfBase(const std::filesystem::path& base) {
  const std::string place = "'" + base.string() + "'";
  if (checkpoint::formatOf(base) != checkpoint::ModelFormat::tandem) {
    throw Error(ErrorKind::usage, place + " is no checkpoint of ours; checkpoint-convert import makes one of it");
  }
  checkpoint::Metadata metadata = checkpoint::readMetadata(base);
  if (holdsAdapters(metadata)) {
    throw Error(ErrorKind::badData, place +
                                        " holds adapters alone, and a finetuning begins with a whole model: with their "
                                        "base, or with both merged");
  }
  return metadata;
}

std::string optimizerName(const TrainOptions& options) {
  return options.optimizer.method == optim::Method::muon ? "muon" : "adamw";
}

// Whether states that a checkpoint holds mean to an optimizer what they meant to the one that made them.
void demandStatesOf(const checkpoint::Metadata& metadata, const std::string& optimizer) {
  const json progress = base::parseJsonOrDiscard(metadata.progress);
  const auto place = json::json_pointer("/identity/optimizer");
  const bool says = progress.is_object() && progress.contains(place) && progress.at(place).is_string();
  const std::string made = says ? progress.at(place).get<std::string>() : optimizer;
  if (made == optimizer) return;
  throw Error(ErrorKind::usage, "--warm-start: the states of the checkpoint are those of " + made +
                                    "; give --optimizer " + made + ", or begin without them");
}

}  // namespace

model::Configuration configurationOf(const TrainOptions& options) {
  if (options.base.empty()) return model::readConfiguration(options.model);
  return model::parseConfiguration(checkpoint::readMetadata(options.base).configuration,
                                   "in checkpoint '" + options.base.string() + "'");
}

std::int64_t equivalentParameters(std::int64_t learned, std::int64_t frozen) { return learned + frozen * 2 / 3; }

double modelFlopsPerToken(const model::Configuration& configuration, std::int64_t parameters,
                          std::int64_t sequenceLength) {
  const auto attention =
      12.0 * static_cast<double>(configuration.layers * configuration.heads * configuration.headSize);
  return 6.0 * static_cast<double>(parameters) + attention * static_cast<double>(sequenceLength);
}

std::unique_ptr<checkpoint::RunLock> takeRunFolder(comm::Communicator& communicator, const TrainOptions& options) {
  std::unique_ptr<checkpoint::RunLock> lock;
  comm::agreeOn(communicator, [&] {
    if (communicator.rank() == 0) base::createFolders(options.output);
  });
  comm::agreeOn(communicator, [&] {
    if (options.resume == "never" && holdsSteps(options.output)) {
      throw Error(ErrorKind::usage,
                  "'" + options.output.string() +
                      "' holds a run already; choose another --output, or --resume auto to go on with it");
    }
    if (communicator.rank() == 0) lock = std::make_unique<checkpoint::RunLock>(options.output);
  });
  return lock;
}

Trainer::Trainer(comm::Communicator& communicator, const Device& device, TrainOptions options,
                 std::string runDescription, std::unique_ptr<checkpoint::RunLock> lock)
    : communicator_(communicator),
      device_(device),
      options_(std::move(options)),
      runDescription_(std::move(runDescription)) {
  comm::agreeOn(communicator_, [&] {
    configuration_ = configurationOf(options_);
    const checkpoint::Metadata ofBase = options_.base.empty() ? checkpoint::Metadata{} : metadataOfBase(options_.base);
    companions_ = ofBase.companions;
    const sharding::Grid grid = gridOf(options_, communicator_.size());
    sharding::demandFitting(grid, configuration_, options_.sequenceLength);
    if (options_.fp8 && !device_.backend.whyNoFp8().empty()) {
      throw Error(ErrorKind::usage, "--fp8 cannot run here: " + device_.backend.whyNoFp8());
    }
    if (options_.fp8 && options_.adapters) {
      throw Error(ErrorKind::usage, "--fp8 is for whole weights that are trained, not for adapters beside frozen ones");
    }
    shape_ = shareOut(options_, grid);
    options_.optimizer.seed = options_.seed;
    data_ = RunData::open(options_);
    data_.demandFitting(configuration_, options_, ofBase.tokenizer);
    if (communicator_.rank() == 0 && !options_.samplePrompts.empty()) {
      samples_.emplace(options_.samplePrompts, options_.sampleTokens,
                       data_.training->dataset(0).description().tokenizer, configuration_);
    }
    if (options_.steps == 0)
      options_.steps = (options_.epochs * data_.training->rowCount() + shape_.rows - 1) / shape_.rows;
    options_.schedule.steps = options_.steps;
  });
  openRunFolder(std::move(lock));
  takeMemory();
  if (options_.profile) step_->profileInto(&profile_);
  if (options_.cudaGraphs && device_.backend.isHostMemory()) {
    TANDEM_LOG(info) << "--cuda-graphs on has no effect on the CPU: there is nothing to record";
  }
  if (options_.optimizer.statesOnHost && device_.backend.isHostMemory()) {
    TANDEM_LOG(info) << "--optimizer-memory host has no effect on the CPU: its memory is the host's";
  }
  resumeOrInitialise();
  const double ownRate = runtime::measureMatrixRate(options_.storage, device_.backend, device_.stream);
  matrixRate_ = comm::allReduceScalar(communicator_, ownRate);
  flopsPerToken_ = modelFlopsPerToken(
      configuration_,
      options_.adapters ? equivalentParameters(step_->executable().program().parameterCount(), parameterCount())
                        : parameterCount(),
      options_.sequenceLength);
  watchHealth();
  describe();
}

Trainer::~Trainer() = default;

void Trainer::watchHealth() {
  telemetry::OpenedSensors sensors;
  std::optional<double> peak;
  comm::agreeOn(communicator_, [&] {
    if (device_.backend.isHostMemory()) return;
    if (options_.telemetry) sensors = telemetry::openNvml(device_.backend.deviceIdentifier());
    peak = telemetry::knownPeakFlops(device_.backend.description(), options_.storage);
  });
  if (!sensors.whyNot.empty()) {
    TANDEM_LOG(warning) << "clocks, power and temperature of the device are not recorded: " << sensors.whyNot;
  }
  const double least = comm::allReduceScalar(communicator_, peak.value_or(0), comm::Reduction::minimum);
  const double sum = comm::allReduceScalar(communicator_, peak.value_or(0));
  if (least > 0) peakFlops_ = sum;
  if (!options_.telemetry) return;
  const sharding::Grid grid = gridOf(options_, communicator_.size());
  const double bytes = sharding::parameterExchangeBytes(grid, step_->parameters().layout().count(), options_.storage,
                                                        shape_.microBatches);
  const bool equalWork = grid.pipeline == 1 && grid.context == 1;  // later parts of a row attend to more
  health_ = std::make_unique<telemetry::RunHealth>(communicator_, std::move(sensors.sensors), bytes, equalWork);
}

void Trainer::takeMemory() {
  try {
    step_ = std::make_unique<TrainingStep>(configuration_, options_, shape_, communicator_, device_);
    if (options_.adapters) {
      evaluator_ =
          std::make_unique<LossEvaluator>(configuration_, step_->parameters(), *options_.adapters, *step_->frozen(),
                                          shape_.microBatch, options_.sequenceLength, device_);
    } else {
      evaluator_ = std::make_unique<LossEvaluator>(configuration_, step_->parameters(), shape_.microBatch,
                                                   options_.sequenceLength, device_, &step_->groups());
    }
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::device) throw;
    throw Error(ErrorKind::device,
                error.message() + "\nThe memory was for this plan:\n" + describePlan(options_, communicator_.size()));
  }
}

std::int64_t Trainer::parameterCount() const {
  return model::buildLoss(configuration_, 1, 1, options_.storage).parameterCount();
}

void Trainer::openRunFolder(std::unique_ptr<checkpoint::RunLock> lock) {
  const bool isTaken = comm::allReduceScalar(communicator_, std::int64_t{lock != nullptr}) > 0;
  if (!isTaken) lock = takeRunFolder(communicator_, options_);
  writer_ = std::make_unique<checkpoint::Writer>(communicator_, options_.output, options_.keep, std::move(lock));
  comm::agreeOn(communicator_, [&] {
    if (communicator_.rank() == 0) journal_.emplace(options_, runDescription_);
  });
}

void Trainer::resumeOrInitialise() {
  const bool found =
      comm::allReduceScalar(communicator_, std::int64_t{holdsSteps(options_.output)}, comm::Reduction::maximum) == 1;
  // A named checkpoint is where the run begins; once it has steps of its own, the same command goes on from these.
  const bool named = options_.resume != "auto" && options_.resume != "never" && !found;
  const std::unique_ptr<checkpoint::ModelSource> base = openBase();
  const bool resumes = named || found;
  if (!resumes || options_.preference) beginAnew(base.get());
  if (options_.preference) askReference();
  if (resumes) {
    const checkpoint::Reader reader(communicator_, named ? std::filesystem::path(options_.resume) : options_.output);
    restoreFrom(reader);
    if (found) savedStep_ = progress_.step;
    TANDEM_LOG(info) << "resumed from '" << reader.folder().string() << "' at step " << progress_.step;
  }
  // Only now is it known that the run goes on: a refused command leaves the folder as it was.
  comm::agreeOn(communicator_, [&] {
    if (journal_) journal_->begin(progress_.step, evaluatedStep_, communicator_.size());
  });
}

void Trainer::beginAnew(const checkpoint::ModelSource* base) {
  if (options_.base.empty() || options_.adapters) {
    initialise(configuration_, options_.seed, step_->parameters(), step_->optimizer(), device_);
  } else if (options_.warmStart) {
    const checkpoint::Reader reader(communicator_, base_.path);
    comm::agreeOn(communicator_, [&] { demandStatesOf(reader.metadata(), optimizerName(options_)); });
    restore(reader, step_->parameters(), step_->optimizer(), communicator_, device_);
    statesStep_ = reader.metadata().step;
  } else {
    beginWith(*base, step_->parameters(), step_->optimizer(), communicator_, device_);
  }
}

// The reference is the model as it is now, adapters changing nothing yet. A run that goes on asks it again, and gets
// the same answers, since the base's fingerprint is the same.
void Trainer::askReference() {
  LogProbabilities reference;
  for (std::int64_t i = 0; i < data_.training->datasetCount(); ++i) {
    reference.push_back(evaluator_->logProbabilities(data_.training->dataset(i), communicator_));
  }
  for (const auto& dataset : data_.validation) {
    validationReference_.push_back(evaluator_->logProbabilities(*dataset, communicator_));
  }
  step_->compareWith(std::move(reference));
}

// Of a finetuning: notes what the base is, and fills what is frozen. Null for any other run.
std::unique_ptr<checkpoint::ModelSource> Trainer::openBase() {
  if (options_.base.empty()) return nullptr;
  std::unique_ptr<checkpoint::ModelSource> model = checkpoint::openModel(communicator_, options_.base);
  comm::agreeOn(communicator_, [&] {
    base_ = baseOf(model->place());
    if (step_->frozen() != nullptr) loadFrozen(*model, *step_->frozen(), device_);
  });
  TANDEM_LOG(info) << "begins with '" << model->place().string() << "', step " << model->metadata().step;
  return model;
}

// What must be the same for a resumed run to see the samples that the unbroken one would have seen, and to make sense
// of the optimizer's states.
std::string Trainer::identity() const {
  json identity = {{"data", data_.identity(options_)},
                   {"optimizer", optimizerName(options_)},
                   {"optimizer_states", options_.optimizer.states == base::DType::bf16 ? "bf16" : "fp32"},
                   {"sequence_length", options_.sequenceLength},
                   {"cross_documents", options_.crossDocuments},
                   {"seed", options_.seed}};
  if (!options_.base.empty()) identity["base"] = base_.fingerprint;
  if (options_.adapters) identity["adapters"] = base::parseJson(options_.adapters->json());
  if (options_.preference) identity["objective"] = base::parseJson(options_.preference->json());
  return base::jsonText(identity);
}

void Trainer::restoreFrom(const checkpoint::Reader& reader) {
  comm::agreeOn(communicator_, [&] {
    const std::string place = "checkpoint '" + reader.folder().string() + "'";
    if (base::parseJson(reader.metadata().configuration) != base::parseJson(configuration_.json)) {
      throw Error(ErrorKind::usage, place + " is of another model than '" + modelPlace(options_) +
                                        "'; give its own, or start a new run in another --output");
    }
    json saved = base::parseJson(reader.metadata().progress);
    saved.at("identity").emplace("optimizer_states", "fp32");  // what steps have that do not say it
    const std::string differences = changedFields(saved.at("identity"), base::parseJson(identity()));
    if (!differences.empty()) {
      throw Error(ErrorKind::usage, place + " cannot go on with other options than it was made with: " + differences +
                                        "; give the same, or start a new run in another --output");
    }
    progress_ = {.step = reader.metadata().step,
                 .skipped = saved.value("skipped", std::int64_t{0}),
                 .tokens = saved.at("tokens"),
                 .nextSample = saved.at("next_sample")};
    evaluatedStep_ = saved.at("evaluated_step");
    if (optim::LossScaler* const scaler = step_->lossScaler(); scaler != nullptr && saved.contains("loss_scale")) {
      scaler->restore(saved.at("loss_scale").at("scale"), saved.at("loss_scale").at("good_steps"));
    }
    bestLoss_ = saved.value("best_loss", 0.0);
    bestStep_ = saved.value("best_step", std::int64_t{-1});
    withoutGain_ = saved.value("evaluations_without_gain", std::int64_t{0});
    statesStep_ = saved.value("states_step", std::int64_t{0});
  });
  restore(reader, step_->parameters(), step_->optimizer(), communicator_, device_);
  if (step_->fp8() != nullptr)
    step_->fp8()->restore(base::jsonText(base::parseJson(reader.metadata().progress).value("fp8", json::object())));
  if (bestStep_ >= 0) writer_->protect(bestStep_);
}

void Trainer::describe() const {
  const graph::Program& program = step_->executable().program();
  const std::int64_t learned = options_.adapters ? program.parameterCount() : parameterCount();
  TANDEM_LOG(info) << configuration_.type << " model of " << base::formatCount(static_cast<double>(learned))
                   << (options_.adapters ? " parameters of adapters on " : " parameters on ") << communicator_.size()
                   << " ranks (" << communicator_.description() << "); " << device_.backend.description();
  if (options_.grid) {
    const std::string map = sharding::gridMap(communicator_, *options_.grid);
    TANDEM_LOG(info) << "grid " << options_.grid->text() << ":\n" << map;
  }
  TANDEM_LOG(info) << "a step has " << options_.batchTokens << " tokens: " << shape_.rows << " rows of "
                   << options_.sequenceLength << ", " << shape_.rowsPerRank << " a rank in " << shape_.microBatches
                   << " micro batches of " << shape_.microBatch << "; "
                   << base::formatFlops(flopsPerToken_ * static_cast<double>(options_.batchTokens)) << " (6N + 12LdT)";
  if (step_->fp8() != nullptr) {
    TANDEM_LOG(info) << step_->fp8()->description();
  }
  TANDEM_LOG(info) << "matrix products reach " << base::formatFlops(matrixRate_)
                   << "/s on all ranks together; shares below are of this rate";
  if (peakFlops_) {
    TANDEM_LOG(info) << "the devices' peak is " << base::formatFlops(*peakFlops_)
                     << "/s on all ranks together (data/devices); mfu in metrics.jsonl is of this";
  }
  TANDEM_LOG(info) << "memory of a rank:\n" << graph::memoryTable(step_->programs());
}

int Trainer::run() {
  const std::int64_t perRank = shape_.rowsPerRank;
  data::BatchStream stream(*data_.training, {.firstSample = progress_.nextSample,
                                             .samplesPerStep = shape_.rows,
                                             .rowBegin = perRank * step_->groups().own().data,
                                             .rows = perRank});
  bool stopped = false;
  if (due(options_.evaluateEvery)) evaluateAll();  // what a run that was told to stop left out
  if (options_.keepBest && bestStep_ >= 0) saveBest();
  while (progress_.step < options_.steps && !stopped && !patienceIsOver()) {
    stopped = trainOneStep(stream);
    const bool last = progress_.step == options_.steps;
    if ((last || due(options_.evaluateEvery)) && !(stopped && !last)) evaluateAll();
    if (options_.keepBest && bestStep_ == progress_.step) saveBest();
    if (last || stopped || patienceIsOver() || due(options_.checkpointEvery)) save();
  }
  writer_->finish();
  const bool early = progress_.step < options_.steps && !patienceIsOver();
  note(early ? "stop" : "end", early ? "after a complete checkpoint, to go on later" : "all is done");
  if (journal_) journal_->writeReport();
  if (options_.profile) {
    TANDEM_LOG(info) << "seconds by operator:\n" << profile_.text();
  }
  if (early) {
    TANDEM_LOG(info) << "stopped at step " << progress_.step << " of " << options_.steps
                     << " after a complete checkpoint; run the same command to go on";
    return base::exitSubmitAgain;
  }
  if (options_.keepBest && bestStep_ >= 0) {
    TANDEM_LOG(info) << "the best step was " << bestStep_ << ", with a loss of " << bestLoss_ << " on "
                     << data_.validationNames.front() << ": "
                     << (holdsStep(bestStep_) ? "'" + (options_.output / "best").string() + "'"
                                              : "in the folder that this run goes on from");
  }
  TANDEM_LOG(info) << (patienceIsOver() ? "done early, as the validation loss does not fall any more: " : "done: ")
                   << progress_.step << " steps, " << base::formatCount(static_cast<double>(progress_.tokens))
                   << " tokens, " << base::formatDuration(secondsSince(start_));
  return 0;
}

std::string Trainer::summary() const {
  nlohmann::ordered_json summary = journal_ ? journal_->summary() : nlohmann::ordered_json::object();
  if (stepsRun_ > 1) {
    const double seconds = std::chrono::duration<double>(lastStepEnd_ - firstStepEnd_).count();
    summary["loop"] = {{"steps", stepsRun_ - 1}, {"seconds", seconds}};
  }
  if (const std::string report = device_.backend.attentionReport(); !report.empty()) summary["attention"] = report;
  return base::jsonText(summary);
}

std::int64_t Trainer::ownFlags() const {
  const bool timeIsUp = options_.timeLimit.count() > 0 && Clock::now() - start_ >= options_.timeLimit;
  return ((timeIsUp || base::stopSignal() != 0) ? stopRequested : 0) | (writer_->failed() ? saveFailed : 0);
}

// True when the run is to stop.
bool Trainer::trainOneStep(data::BatchStream& stream) {
  const Clock::time_point start = Clock::now();
  std::optional<data::Batch> batch;
  double dataSeconds = 0;
  comm::agreeOn(communicator_, [&] {
    batch = stream.next();
    dataSeconds = secondsSince(start);  // of this rank alone: waiting for the others' data is waiting
  });
  const double dataWaitSeconds = secondsSince(start) - dataSeconds;
  const double learningRate = options_.schedule.rate(progress_.step + 1);
  const std::int64_t updates = statesStep_ + progress_.step + 1 - progress_.skipped;
  StepResult result = step_->run(*batch, updates, learningRate, ownFlags());
  result.waitSeconds += dataWaitSeconds;
  ++progress_.step;
  progress_.skipped += result.skipped ? 1 : 0;
  progress_.tokens += shape_.rows * options_.sequenceLength;
  progress_.nextSample += shape_.rows;
  record(metricsOf(result, learningRate, dataSeconds, secondsSince(start)));
  (stepsRun_ == 0 ? firstStepEnd_ : lastStepEnd_) = Clock::now();
  // The first calls of all are not timed; a run of one step has no others.
  if (++stepsRun_ == 2 || (stepsRun_ == 1 && progress_.step == options_.steps)) reportAttention();
  guardAgainstBadSteps(result);
  writer_->poll();
  if (result.raised & saveFailed) writer_->finish();  // throws the reason on every rank
  return (result.raised & stopRequested) != 0 || straggles_;
}

// What served attention, now that it has run: in the log, and beside the options in run.json.
void Trainer::reportAttention() {
  if (device_.backend.isHostMemory()) return;  // has no choice, on no rank
  const std::string report = device_.backend.attentionReport();
  if (!report.empty()) {
    TANDEM_LOG(info) << "attention: " << report;
  }
  comm::agreeOn(communicator_, [&] {
    if (journal_ && !report.empty()) journal_->describe("attention", report);
  });
}

void Trainer::guardAgainstBadSteps(const StepResult& result) {
  if (result.overflowed) {
    TANDEM_LOG(info) << "step " << progress_.step
                     << " was skipped on all ranks: gradients overflowed at a loss scale of "
                     << static_cast<std::int64_t>(*result.lossScale) << ", which is halved";
    return;
  }
  if (!result.skipped) {
    badSteps_ = 0;
    badSamples_.clear();
    return;
  }
  ++badSteps_;
  badSamples_ += (badSamples_.empty() ? "" : ", ") + std::to_string(progress_.nextSample - shape_.rows) + " to " +
                 std::to_string(progress_.nextSample - 1);
  TANDEM_LOG(warning) << "step " << progress_.step << " gave no finite loss or gradient and was skipped on all ranks";
  note("skipped", "no finite loss or gradient");
  if (badSteps_ < options_.maxBadSteps) return;
  comm::agree(communicator_,
              Error(ErrorKind::numeric, std::to_string(badSteps_) +
                                            " steps in a row gave no finite loss or gradient (samples " + badSamples_ +
                                            "); lower --learning-rate, or look at these samples"));
}

telemetry::StepMetrics Trainer::metricsOf(const StepResult& result, double learningRate, double dataSeconds,
                                          double stepSeconds) const {
  telemetry::StepMetrics m;
  m.step = progress_.step;
  m.tokens = progress_.tokens;
  m.loss = result.loss;
  m.learningRate = learningRate;
  m.gradientNorm = result.gradientNorm;
  m.gradientNormGroups = result.gradientNormGroups;
  m.stepSeconds = stepSeconds + checkpointSeconds_;
  m.computeSeconds = result.computeSeconds;
  m.waitSeconds = result.waitSeconds;
  m.communicationSeconds = result.communicationSeconds;
  m.dataSeconds = dataSeconds;
  m.checkpointSeconds = checkpointSeconds_;
  m.tokensPerSecond = static_cast<double>(shape_.rows * options_.sequenceLength) / stepSeconds;
  m.modelFlopsPerSecond = m.tokensPerSecond * flopsPerToken_;
  m.matrixRateShare = m.modelFlopsPerSecond / matrixRate_;
  if (peakFlops_) m.mfu = m.modelFlopsPerSecond / *peakFlops_;
  m.peakMemoryBytes = telemetry::peakResidentBytes();
  m.lossScale = result.lossScale;
  m.preference = result.preference;
  m.skipped = result.skipped;
  return m;
}

void Trainer::record(telemetry::StepMetrics m) {
  if (health_) observeRanks(m);
  checkpointSeconds_ = 0;
  if (journal_) journal_->add(std::move(m));
}

// Adds what the ranks tell one another; collective.
void Trainer::observeRanks(telemetry::StepMetrics& m) {
  using telemetry::RankReport;
  telemetry::StepObservation seen =
      health_->observe({.stepSeconds = m.stepSeconds - m.checkpointSeconds,
                        .computeSeconds = m.computeSeconds,
                        .waitSeconds = m.waitSeconds,
                        .communicationSeconds = m.communicationSeconds,
                        .dataSeconds = m.dataSeconds,
                        .checkpointSeconds = m.checkpointSeconds > 0 ? m.checkpointSeconds : RankReport::unknown});
  if (seen.straggler) {
    TANDEM_LOG(warning) << "step " << m.step << ": " << seen.straggler->text;
    note("straggler", seen.straggler->text);
    straggles_ = options_.onStraggler == OnStraggler::checkpointAndExit;
    m.straggler = seen.straggler->text;
  }
  m.peakMemoryBytes = seen.peakMemoryBytes;
  m.powerWatts = seen.powerWatts;
  m.ranks = std::move(seen.ranks);
}

void Trainer::evaluateAll() {
  if (evaluatedStep_ == progress_.step || progress_.step == 0) return;
  evaluatedStep_ = progress_.step;
  step_->settle();
  if (journal_) journal_->beginEvaluations();
  for (std::size_t i = 0; i < data_.validation.size(); ++i) {
    const telemetry::EvaluationMetrics m = options_.preference ? preferenceOn(i) : lossOn(i);
    if (options_.keepBest && i == 0) noteBest(m.loss);
    if (journal_) journal_->add(m);
  }
  writeSamples();
}

telemetry::EvaluationMetrics Trainer::lossOn(std::size_t validation) {
  const EvaluationResult result = evaluator_->evaluate(*data_.validation[validation], options_.crossDocuments,
                                                       options_.evaluateTokens, communicator_);
  return {.step = progress_.step,
          .evaluation = data_.validationNames[validation],
          .loss = result.loss,
          .bitsPerByte = result.bitsPerByte,
          .tokens = result.targets};
}

telemetry::EvaluationMetrics Trainer::preferenceOn(std::size_t validation) {
  const PreferenceSums sums =
      sumOfPairs(*options_.preference, evaluator_->logProbabilities(*data_.validation[validation], communicator_),
                 validationReference_[validation]);
  return {.step = progress_.step,
          .evaluation = data_.validationNames[validation],
          .loss = sums.meanLoss(),
          .preference = sums.means()};
}

// Rank 0 writes while the others wait for it in what comes next.
void Trainer::writeSamples() {
  if (options_.samplePrompts.empty()) return;
  comm::agreeOn(communicator_, [&] {
    if (!samples_) return;
    const std::vector<std::string> texts = samples_->write(step_->parameters(), device_);
    for (std::size_t i = 0; i < texts.size(); ++i) {
      journal_->addSample(progress_.step, samples_->prompts()[i], texts[i]);
    }
  });
}

void Trainer::note(const std::string& kind, const std::string& text) {
  if (journal_) journal_->note(progress_.step, kind, text);
}

void Trainer::noteBest(double loss) {
  const bool better = std::isfinite(loss) && (bestStep_ < 0 || loss < bestLoss_);
  withoutGain_ = better ? 0 : withoutGain_ + 1;
  if (!better) return;
  bestLoss_ = loss;
  bestStep_ = progress_.step;
}

bool Trainer::holdsStep(std::int64_t step) const {
  return std::filesystem::exists(options_.output / checkpoint::relativePathOf(step));
}

// The link RUN/best shows the step; it is set when the step is whole. Also of a run that goes on: it may have ended
// between both, or in front of the evaluation that found the step to be the best.
void Trainer::saveBest() {
  writer_->protect(bestStep_);
  if (bestStep_ == progress_.step) save();
  writer_->finish();
  comm::agreeOn(communicator_, [&] {
    if (communicator_.rank() != 0 || !holdsStep(bestStep_)) return;
    const std::filesystem::path link = options_.output / "best", fresh = options_.output / "best.partial";
    std::filesystem::remove(fresh);
    std::filesystem::create_symlink(checkpoint::relativePathOf(bestStep_), fresh);
    std::filesystem::rename(fresh, link);
  });
}

// What a checkpoint remembers of the run.
std::string Trainer::progress() const {
  json progress = {{"skipped", progress_.skipped},
                   {"tokens", progress_.tokens},
                   {"next_sample", progress_.nextSample},
                   {"evaluated_step", evaluatedStep_},
                   {"identity", base::parseJson(identity())}};
  if (const optim::LossScaler* const scaler = step_->lossScaler()) {
    progress["loss_scale"] = {{"scale", scaler->scale()}, {"good_steps", scaler->goodSteps()}};
  }
  if (step_->fp8() != nullptr) progress["fp8"] = base::parseJson(step_->fp8()->save());
  if (!options_.base.empty()) progress["base"] = {{"path", base_.path}, {"fingerprint", base_.fingerprint}};
  if (options_.adapters) progress["adapters"] = base::parseJson(options_.adapters->json());
  if (statesStep_ > 0) progress["states_step"] = statesStep_;
  if (bestStep_ >= 0) {
    progress["best_loss"] = bestLoss_;
    progress["best_step"] = bestStep_;
    progress["evaluations_without_gain"] = withoutGain_;
  }
  return base::jsonText(progress);
}

void Trainer::save() {
  if (savedStep_ == progress_.step) return;
  const Clock::time_point start = Clock::now();
  step_->settle();
  if (journal_) journal_->sync();
  const checkpoint::Metadata metadata{
      .step = progress_.step,
      .tokenizer = data_.training->dataset(0).description().tokenizer,
      .configuration = configuration_.json,
      .options = runDescription_,
      .progress = progress(),
      .companions = checkpoint::withChatTemplate(companions_, data_.training->dataset(0).description().chatTemplate)};
  writer_->save(metadata, localTensors(step_->parameters(), step_->optimizer()), copyFrom(device_));
  savedStep_ = progress_.step;
  if (journal_ && journal_->isReportDue()) journal_->writeReport();
  checkpointSeconds_ += secondsSince(start);
}

}  // namespace tandem::train
