#pragma once
// A training run: a batch comes from `data`, a step's program runs, the optimizer updates the shards, telemetry
// records, a checkpoint takes its copy when due. With guards around: bad steps, signals, the time limit, a failed save.

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/model_source.h"
#include "common/comm/communicator.h"
#include "common/model/configuration.h"
#include "common/telemetry/metrics.h"
#include "common/telemetry/run_health.h"
#include "common/train/adapters.h"
#include "common/train/loss_evaluator.h"
#include "common/train/options.h"
#include "common/train/run_data.h"
#include "common/train/run_journal.h"
#include "common/train/text_samples.h"
#include "common/train/training_step.h"

namespace tandem::train {

// Takes the folder of a run, for whoever has to write into it before the run begins: makes it, and locks it. Refuses
// one that is in use, or that holds a run where --resume never says that it must not. Collective; rank 0 gets the lock.
std::unique_ptr<checkpoint::RunLock> takeRunFolder(comm::Communicator& communicator, const TrainOptions& options);

class Trainer {
 public:
  // `runDescription` is the JSON that run.json holds: options as used, build, hosts. Opens everything, and restores the
  // newest checkpoint when asked. `lock` is of takeRunFolder, where that was called before. Collective; throws what is
  // wrong with the input on every rank.
  Trainer(comm::Communicator& communicator, const Device& device, TrainOptions options, std::string runDescription,
          std::unique_ptr<checkpoint::RunLock> lock = nullptr);
  ~Trainer();

  // Trains up to options.steps. Returns 0, or 75 when it stopped early after a complete checkpoint.
  int run();

  // On rank 0, what the run ended with: a JSON object with the last step's metrics ("step", null without one), the
  // last evaluations ("evaluations"), the steps after the first of this call with the seconds from the end of that to
  // the end of the last ("loop"), and what served attention ("attention") where there is a choice.
  std::string summary() const;

 private:
  struct Progress {  // what a checkpoint remembers of the loop
    std::int64_t step = 0;
    std::int64_t skipped = 0;  // steps that changed nothing: AdamW's corrections of its moments do not count them
    std::int64_t tokens = 0;
    std::int64_t nextSample = 0;
  };

  void takeMemory();
  std::int64_t parameterCount() const;  // of the whole model
  void openRunFolder(std::unique_ptr<checkpoint::RunLock> lock);
  void resumeOrInitialise();
  std::unique_ptr<checkpoint::ModelSource> openBase();
  void beginAnew(const checkpoint::ModelSource* base);
  void askReference();
  void restoreFrom(const checkpoint::Reader& reader);
  void describe() const;

  void watchHealth();
  bool trainOneStep(data::BatchStream& stream);
  void guardAgainstBadSteps(const StepResult& result);
  void reportAttention();
  telemetry::StepMetrics metricsOf(const StepResult& result, double learningRate, double dataSeconds,
                                   double stepSeconds) const;
  void record(telemetry::StepMetrics metrics);
  void observeRanks(telemetry::StepMetrics& metrics);
  void note(const std::string& kind, const std::string& text);
  void evaluateAll();
  telemetry::EvaluationMetrics lossOn(std::size_t validation);
  telemetry::EvaluationMetrics preferenceOn(std::size_t validation);
  void writeSamples();
  void save();
  void noteBest(double loss);
  bool holdsStep(std::int64_t step) const;
  void saveBest();
  bool patienceIsOver() const { return options_.patience > 0 && withoutGain_ >= options_.patience; }
  std::int64_t ownFlags() const;
  bool due(std::int64_t every) const { return every > 0 && progress_.step % every == 0; }
  std::string identity() const;
  std::string progress() const;

  comm::Communicator& communicator_;
  Device device_;
  TrainOptions options_;
  std::string runDescription_;
  model::Configuration configuration_;
  BatchShape shape_;
  RunData data_;
  LogProbabilities validationReference_;  // where pairs are learned
  std::unique_ptr<TrainingStep> step_;
  std::unique_ptr<LossEvaluator> evaluator_;
  std::unique_ptr<checkpoint::Writer> writer_;
  std::optional<RunJournal> journal_;   // on rank 0
  std::optional<TextSamples> samples_;  // on rank 0, where they are asked for
  runtime::Profile profile_;
  std::unique_ptr<telemetry::RunHealth> health_;  // null without telemetry
  bool straggles_ = false;                        // a rank holds the others up, and the run is to end for it

  Progress progress_;
  std::int64_t savedStep_ = -1;
  std::int64_t evaluatedStep_ = -1;
  Base base_;               // of a finetuning
  std::string companions_;  // what goes with the base (Metadata)
  double bestLoss_ = 0;
  std::int64_t bestStep_ = -1;
  std::int64_t withoutGain_ = 0;  // evaluations since the best one
  std::int64_t statesStep_ = 0;   // the step that warm optimizer states come from
  std::int64_t badSteps_ = 0;     // in a row
  std::int64_t stepsRun_ = 0;     // by this process
  std::string badSamples_;
  double checkpointSeconds_ = 0;     // since the last recorded step
  double matrixRate_ = 0;            // of all ranks together
  std::optional<double> peakFlops_;  // likewise, as the devices' maker gives it
  double flopsPerToken_ = 0;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point firstStepEnd_{}, lastStepEnd_{};  // of this process
};

// The parameters of a finetuning with adapters, those that are frozen counted by two thirds: they have no gradients of
// their own.
std::int64_t equivalentParameters(std::int64_t learned, std::int64_t frozen);

// Model FLOPs of a token, forward and backward: 6 N + 12 L d T with N parameters, L layers, d the width of all heads
// and T tokens a row (Chowdhery et al., PaLM, appendix B); the causal mask's half is not taken off.
double modelFlopsPerToken(const model::Configuration& configuration, std::int64_t parameters,
                          std::int64_t sequenceLength);

// The model that is trained: read from options.model, or from the base of a finetuning.
model::Configuration configurationOf(const TrainOptions& options);

// What --dry-run prints: parameters, memory by kind, FLOPs of a step. Reads no data.
std::string describePlan(const TrainOptions& options, int ranks);

}  // namespace tandem::train
