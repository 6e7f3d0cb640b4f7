#pragma once
// A model read from a checkpoint, ready to compute: what every evaluation begins with.

#include <memory>
#include <optional>
#include <string>

#include "apps/shared/device.h"
#include "apps/shared/program.h"
#include "common/model/configuration.h"
#include "common/runtime/parameter_store.h"
#include "common/train/rank_groups.h"
#include "common/train/training_step.h"

namespace tandem::evaluate {

struct ModelOptions {
  std::string checkpoint;
  std::string precision = "fp32";
  std::string quantize = "none";
  app::DeviceOptions device;
};

void declareModelOptions(CLI::App& app, ModelOptions& options);

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
  std::unique_ptr<runtime::ParameterStore> parameters;  // what this rank of the grid has of them

  train::Device device() const { return chosen.device(); }
};

// Collective. Throws what is wrong with the checkpoint on every rank. Without a grid every rank has the whole model.
LoadedModel loadModel(comm::Communicator& world, const app::CommonOptions& common, const ModelOptions& options,
                      const std::optional<sharding::Grid>& grid = {});

}  // namespace tandem::evaluate
