#pragma once
// What a training run is asked to do, as the command line gives it.

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/base/dtype.h"
#include "common/graph/passes.h"
#include "common/optim/loss_scaler.h"
#include "common/optim/optimizer.h"
#include "common/optim/schedule.h"
#include "common/sharding/grid.h"
#include "common/sharding/rank_program.h"
#include "common/train/adapters.h"
#include "common/train/preference.h"

namespace tandem::train {

// What to do about a rank that holds the others up.
enum class OnStraggler { warn, checkpointAndExit };
// "warn" or "checkpoint-and-exit"; throws Error of kind usage for another text.
OnStraggler parseOnStraggler(const std::string& text);

struct TrainOptions {
  std::string model;              // path of the model configuration; of a finetuning empty
  std::filesystem::path base;     // the checkpoint that a finetuning begins with; empty: initial values
  std::vector<std::string> data;  // "train.h5" or "train.h5:0.25"
  std::vector<std::string> validation;
  std::filesystem::path output;  // the run folder

  std::int64_t steps = 0;        // of the whole run
  std::int64_t epochs = 0;       // the same as passes over the data, where steps is 0
  std::int64_t batchTokens = 0;  // of a step, over all ranks
  std::int64_t sequenceLength = 0;
  std::int64_t microBatch = 0;  // rows a rank computes at once; 0: chosen
  bool crossDocuments = false;
  std::uint64_t seed = 0;

  optim::OptimizerOptions optimizer;
  optim::Schedule schedule;      // its `steps` is set from the run's
  double clipNorm = 1.0;         // 0: no clipping
  std::int64_t maxBadSteps = 5;  // in a row

  std::optional<sharding::Grid> grid;  // how the model is split over the ranks; none: data parallel over all
  std::int64_t bucketElements = sharding::usualBucketElements;  // gradients exchanged at once
  // Of a finetuning
  std::optional<AdapterOptions> adapters;       // learned instead of the weights
  std::optional<PreferenceOptions> preference;  // learned from pairs, instead of from answers
  bool warmStart = false;                       // begin with the optimizer states of the base
  bool keepBest = false;      // the step with the best loss on the first validation set is kept besides
  std::int64_t patience = 0;  // evaluations in a row without a better one that end the run; 0: none

  base::DType storage = base::DType::f32;  // of weights and activations
  optim::LossScaleOptions lossScale;       // float16 only
  bool overlap = true;                     // exchanges of gradients and weights beside computing
  bool cudaGraphs = false;                 // record micro batches and replay them, where the backend can
  bool fp8 = false;                        // multiply the linear layers' operands as 8-bit floats
  graph::Recompute recompute = graph::Recompute::nothing;

  std::int64_t evaluateEvery = 0;    // steps; 0: at the end only
  std::int64_t evaluateTokens = 0;   // of each dataset; 0: all
  std::int64_t checkpointEvery = 0;  // steps; 0: at the end only
  int keep = 3;
  std::chrono::seconds timeLimit{0};  // 0: none
  std::string resume = "auto";        // "auto", "never" or the path of a checkpoint
  OnStraggler onStraggler = OnStraggler::warn;
  bool telemetry = true;            // record each step, and watch the ranks; else only evaluations and what happens
  bool profile = false;             // print seconds by operator at the end
  bool gradientNormGroups = false;  // record the gradient's norm by group of layers
  std::vector<std::string> samplePrompts;  // texts that the model goes on from at each evaluation
  std::int64_t sampleTokens = 64;          // of each
};

// The storage type of weights and activations: "fp32", "bf16" or "fp16". Throws Error of kind usage for another text.
base::DType parsePrecision(const std::string& text);

// Why a run with these options cannot have that grid, whatever the model: an optimizer or a
// recording that it would cut; empty when it can.
std::string whyNotRunnable(const TrainOptions& options, const sharding::Grid& grid);

// The grid of a run on that many ranks. Throws Error of kind usage with whyNotRunnable.
sharding::Grid gridOf(const TrainOptions& options, int ranks);

// How the rows of a step are shared out.
struct BatchShape {
  std::int64_t rows = 0;          // of a step, over all ranks
  std::int64_t rowsPerRank = 0;   // of a rank of the data axis
  std::int64_t microBatch = 0;    // rows
  std::int64_t microBatches = 0;  // of a rank in a step
};

// Over the ranks of the data axis, in as many micro batches as interleaved stages want. Throws Error of kind usage,
// with the values that are possible, when the batch does not divide.
BatchShape shareOut(const TrainOptions& options, const sharding::Grid& grid);

}  // namespace tandem::train
