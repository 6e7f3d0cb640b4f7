#pragma once
// The options of a training run, which pretrain declares and preflight tries out before it.

#include <cstdint>
#include <string>

#include "apps/shared/device.h"
#include "apps/shared/program.h"
#include "common/train/options.h"

namespace tandem::app {

// The options whose types the command line does not know.
struct TrainingTexts {
  std::string precision = "fp32";
  std::string microBatch = "0";    // rows, or "auto"
  double memoryLimit = 0;          // GiB; 0: what is free
  std::string recompute = "auto";  // none, unless a plan chooses
  std::string schedule = "cosine";
  std::string optimizer = "adamw";
  std::string optimizerStates = "fp32";
  std::string optimizerMemory = "device";
  std::string overlap = "on";
  std::string cudaGraphs = "off";
  std::string timeLimit = "0s";
  std::string shard;    // a grid or "auto"; empty: data parallel over all ranks
  std::string cluster;  // the description of another cluster to plan for
  std::string onStraggler = "warn";
  std::string telemetry = "on";
  DeviceOptions device;
  std::int64_t tokens = 0;
  bool dryRun = false;  // only a plan is wanted: data and output may be missing
};

void declareTrainingOptions(CLI::App& app, train::TrainOptions& options, TrainingTexts& texts);

// The same without what is to be trained and how much of it at once, for finetune, which has defaults for these.
void declareRunOptions(CLI::App& app, train::TrainOptions& options, TrainingTexts& texts);

// What run.json and every checkpoint say of how the run was made. Collective.
std::string describeRun(comm::Communicator& world, const CommonOptions& common, const std::string& program);

// What a run is asked to do. Throws Error of kind usage for what cannot be meant, options without effect among it.
train::TrainOptions completeTrainingOptions(const CommonOptions& common, train::TrainOptions options,
                                            const TrainingTexts& texts);

// Declares --shard, whose text sharding::parseGrid reads.
void declareShard(CLI::App& app, std::string& text);

}  // namespace tandem::app
