#pragma once
// A model read from a checkpoint, ready to compute: what every evaluation begins with.

#include <memory>
#include <string>

#include "apps/shared/program.h"
#include "common/model/configuration.h"
#include "common/runtime/parameter_store.h"
#include "common/train/training_step.h"

namespace tandem::evaluate {

struct ModelOptions {
  std::string checkpoint;
  std::string precision = "fp32";
  std::string matrixLibrary = "auto";
};

void declareModelOptions(CLI::App& app, ModelOptions& options);

// Members are in the order of their making: what comes later uses what comes before.
struct LoadedModel {
  std::unique_ptr<kernels::Backend> backend;
  std::unique_ptr<kernels::Stream> stream;
  std::shared_ptr<runtime::Arena> arena;
  model::Configuration configuration;
  std::string tokenizer;  // tokenizer.json text
  std::int64_t step = 0;
  std::string folder;               // of the checkpoint's step
  std::int64_t sequenceLength = 0;  // of the rows that it was trained on
  std::unique_ptr<runtime::ParameterStore> parameters;

  train::Device device() const { return {*backend, *stream, arena}; }
};

// Collective. Throws what is wrong with the checkpoint on every rank.
LoadedModel loadModel(comm::Communicator& world, const app::CommonOptions& common, const ModelOptions& options);

}  // namespace tandem::evaluate
