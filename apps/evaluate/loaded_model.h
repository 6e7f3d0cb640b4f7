#pragma once
// A model read from a checkpoint, ready to compute: what every evaluation begins with.

#include <memory>
#include <string>

#include "apps/shared/device.h"
#include "apps/shared/program.h"
#include "common/model/configuration.h"
#include "common/model/transformer.h"
#include "common/runtime/decoding_ranks.h"
#include "common/runtime/parameter_store.h"
#include "common/train/rank_groups.h"
#include "common/train/training_step.h"

namespace tandem::evaluate {

struct ModelOptions {
  std::string checkpoint;
  std::string precision = "fp32";
  std::string quantize = "none";
  std::string shard;  // a grid; empty: every rank has the whole model
  app::DeviceOptions device;
};

void declareModelOptions(CLI::App& app, ModelOptions& options);
// --shard and --kv-cache alone.
void declareShard(CLI::App& app, std::string& text);
void declareCaches(CLI::App& app, model::CacheFormat& caches);

// Members are in the order of their making: what comes later uses what comes before.
struct LoadedModel {
  app::ChosenDevice chosen;
  model::Configuration configuration;
  std::string tokenizer;     // tokenizer.json text
  std::string chatTemplate;  // Jinja; empty for none
  std::int64_t step = 0;
  std::string folder;               // of the checkpoint's step
  std::int64_t sequenceLength = 0;  // of the rows that it was trained on
  std::unique_ptr<train::RankGroups> groups;
  std::unique_ptr<runtime::DecodingRanks> split;        // to decode with; null where this rank has the whole model
  std::unique_ptr<runtime::ParameterStore> parameters;  // what this rank of the grid has of them

  train::Device device() const { return chosen.device(); }
  // Copies of the model, and the one that this rank belongs to: what prompts are shared out over.
  int copies() const { return groups->grid().data; }
  int copy() const { return groups->own().data; }
};

// What a model is loaded for: the loss of whole rows, or decoding over a KV cache.
enum class Work { loss, decoding };

// Collective. Throws what is wrong with the checkpoint on every rank, and Error of kind usage for a grid that the model
// cannot be split over for that work. Where a pipeline cuts it for the loss depends on the length of the rows; 0: those
// that it was trained on.
LoadedModel loadModel(comm::Communicator& world, const app::CommonOptions& common, const ModelOptions& options,
                      Work work = Work::decoding, std::int64_t sequenceLength = 0);

}  // namespace tandem::evaluate
