#pragma once
// One training step of a model on a group of ranks: micro batches forward and backward, exchange, guard, update.

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/comm/communicator.h"
#include "common/data/batch.h"
#include "common/model/configuration.h"
#include "common/optim/gradient_exchange.h"
#include "common/optim/loss_scaler.h"
#include "common/optim/optimizer.h"
#include "common/runtime/executable.h"
#include "common/runtime/parameter_store.h"
#include "common/runtime/weight_gathering.h"
#include "common/sharding/pipeline.h"
#include "common/sharding/rank_program.h"
#include "common/train/device.h"
#include "common/train/fp8_scaling.h"
#include "common/train/gradient_groups.h"
#include "common/train/options.h"
#include "common/train/rank_groups.h"

namespace tandem::train {

// What a rank has to tell the others at the end of a step; all act on it in the same step.
constexpr std::int64_t stopRequested = 1;  // a signal came, or the time is up
constexpr std::int64_t saveFailed = 2;     // the checkpoint being written in the background failed

struct StepResult {
  double loss = 0;           // mean over the target tokens of all ranks, or over the pairs
  double gradientNorm = 0;   // before clipping, the loss scale taken off
  std::int64_t targets = 0;  // of all ranks
  std::vector<std::pair<std::string, double>> gradientNormGroups;  // where that is asked
  bool skipped = false;             // loss or gradient was not finite: nothing was changed
  bool overflowed = false;          // skipped for the loss scale, which has been halved: no fault of the data
  std::optional<double> lossScale;  // that the step was computed with; float16 only
  std::int64_t raised = 0;          // flags of all ranks together
  double computeSeconds = 0;
  double waitSeconds = 0;
  double communicationSeconds = 0;
  std::optional<telemetry::PreferenceMetrics> preference;  // of all ranks' pairs
};

class TrainingStep {
 public:
  TrainingStep(const model::Configuration& configuration, const TrainOptions& options, const BatchShape& shape,
               comm::Communicator& communicator, const Device& device);

  // `batch` holds this rank's rows; `step` counts updates from 1; `flags` is a sum of the flags above. Collective.
  StepResult run(const data::Batch& batch, std::int64_t step, double learningRate, std::int64_t flags);

  // Where pairs are learned: the reference's log probabilities, before the first step.
  void compareWith(LogProbabilities reference) { reference_ = std::move(reference); }

  // Waits for the weights that are still on their way from other ranks' updates. Before anything but the next step
  // reads weights; a call on one rank alone waits for the others'.
  void settle() { arrival_.finish(); }

  RankGroups& groups() { return groups_; }
  runtime::ParameterStore& parameters() {
    settle();
    return *parameters_;
  }
  // Weights that are not trained; null when all are.
  runtime::ParameterStore* frozen() { return frozen_.get(); }
  optim::Optimizer& optimizer() { return *optimizer_; }
  optim::LossScaler* lossScaler() { return scaler_ ? &*scaler_ : nullptr; }  // float16 only
  // Of the first run of layers, which without virtual stages is the only one.
  const runtime::Executable& executable() const { return *runs_.front().slots.front()->executable; }
  // What takes memory: the program of each run of layers, as often as micro batches of it are in flight.
  std::vector<graph::ProgramInFlight> programs() const;
  Fp8Scaling* fp8() { return fp8_.get(); }  // null without --fp8
  void profileInto(runtime::Profile* profile);

 private:
  // A micro batch in flight: a pipeline stage has some at once, each with activations of its own.
  struct Slot {
    std::shared_ptr<runtime::Arena> arena;
    std::unique_ptr<runtime::ActivationExchange> activations;
    std::unique_ptr<runtime::WeightGathering> weights;  // of shared-out weights
    std::unique_ptr<runtime::Executable> executable;
  };
  // A run of layers, which takes its micro batches in order.
  struct Run {
    std::vector<std::unique_ptr<Slot>> slots;
    Slot& slotOf(std::int64_t index) const { return *slots[static_cast<std::size_t>(index) % slots.size()]; }
  };

  bool gathersBesideComputing() const;
  void makeExchange(std::vector<std::string> sharedByStages);
  graph::Program trainingProgramOf(const sharding::PartitionedProgram& loss, const Device& device);
  std::unique_ptr<Slot> makeSlot(const graph::Program& program, const Device& device, bool isFirst);
  void runTask(const sharding::StageTask& task, const data::Batch& batch, float gradScale);
  template <class Work>
  void forAllSlots(Work&& work) const {
    for (const Run& run : runs_) {
      for (const auto& slot : run.slots) work(*slot);
    }
  }
  PreferenceSums weighPairs(const data::Batch& batch, double lossScale);
  void giveInputs(Slot& slot, const data::Batch& batch, std::int64_t index, const float* gradScale);
  void runForward(Slot& slot, const data::Batch& batch, std::int64_t index, float gradScale);
  void runBackward(Slot& slot, std::int64_t index);
  runtime::Collectives* collectivesOf(std::int64_t index);
  double takeSecondsWaited();

  const TrainOptions& options_;
  BatchShape shape_;
  comm::Communicator& communicator_;
  RankGroups groups_;
  std::unique_ptr<comm::Communicator> tiedStages_;  // the first and the last, where they share parameters
  std::unique_ptr<runtime::ParameterStore> parameters_;
  std::unique_ptr<runtime::ParameterStore> frozen_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<optim::GradientExchange> exchange_;
  runtime::WeightArrival arrival_;  // where all ranks hold all weights
  std::optional<optim::LossScaler> scaler_;
  std::unique_ptr<Fp8Scaling> fp8_;
  std::optional<GradientGroups> gradientGroups_;
  std::vector<sharding::StageTask> schedule_;
  std::vector<Run> runs_;
  LogProbabilities reference_;
  std::vector<float> tokenWeights_;  // of the step's rows, where pairs are learned
  std::vector<float> losses_;        // of a micro batch
  double lossSum_ = 0;
};

// How the ranks that hold the same parameters share them out: Muon needs whole ones.
sharding::FlatLayout layoutOf(std::span<const sharding::PartitionedProgram> parts, const TrainOptions& options,
                              const sharding::Grid& grid);

// Programs of a whole model: of a training step, and of a loss without gradients.
graph::Program trainingProgram(const model::Configuration& configuration, std::int64_t rows,
                               std::int64_t sequenceLength, base::DType storage, graph::Recompute recompute);
graph::Program lossProgram(const model::Configuration& configuration, std::int64_t rows, std::int64_t sequenceLength,
                           base::DType storage, const std::optional<AdapterOptions>& adapters = {});

// Gives such a program those inputs that it has: as many rows of the batch as it computes, from firstRow on.
void setBatchInputs(runtime::Executable& executable, const data::Batch& batch, std::int64_t firstRow);

// What the optimizer must know of each parameter of a layout.
std::vector<optim::ParameterTraits> parameterTraits(const model::Configuration& configuration,
                                                    const sharding::FlatLayout& layout, optim::Method method);

}  // namespace tandem::train
