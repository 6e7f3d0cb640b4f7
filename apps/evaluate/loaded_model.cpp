#include "apps/evaluate/loaded_model.h"

#include <optional>

#include "common/checkpoint/chat_template.h"
#include "common/checkpoint/model_source.h"
#include "common/model/transformer.h"
#include "common/train/model_state.h"
#include "common/train/quantised_weights.h"

namespace tandem::evaluate {

void declareModelOptions(CLI::App& app, ModelOptions& options) {
  app.add_option("--checkpoint", options.checkpoint,
                 "A run folder (its newest complete step), one step's folder, a Hugging Face folder or a GGUF file")
      ->required()
      ->type_name("PATH");
  app.add_option("--precision", options.precision, "Storage of weights and activations: fp32, bf16 or fp16")
      ->type_name("NAME");
  app.add_option("--quantize", options.quantize,
                 "Hold the matrices in fewer bits: int8, or int4 in groups; none: as the checkpoint has them")
      ->check(CLI::IsMember({"none", "int8", "int4"}))
      ->type_name("FORMAT");
  app::declareDeviceOptions(app, options.device);
}

LoadedModel loadModel(comm::Communicator& world, const app::CommonOptions& common, const ModelOptions& options,
                      const std::optional<sharding::Grid>& grid) {
  const base::DType storage = train::parsePrecision(options.precision);
  LoadedModel loaded;
  loaded.chosen = app::chooseDevice(world, common, options.device);
  const train::Device device = loaded.device();
  loaded.groups =
      std::make_unique<train::RankGroups>(world, device, grid.value_or(sharding::Grid{.data = world.size()}));
  const std::unique_ptr<checkpoint::ModelSource> source = checkpoint::openModel(world, options.checkpoint);
  comm::agreeOn(world, [&] {
    if (grid && options.quantize != "none") {
      throw base::Error(base::ErrorKind::usage, "--quantize " + options.quantize + " and --shard " + grid->text() +
                                                    " do not go together: quantised matrices are not split");
    }
    loaded.configuration = source->configuration();
    loaded.tokenizer = source->metadata().tokenizer;
    loaded.chatTemplate = checkpoint::chatTemplateOf(source->metadata());
    loaded.step = source->metadata().step;
    loaded.folder = source->place().string();
    loaded.sequenceLength = train::trainedSequenceLength(*source);
    sharding::demandFitting(loaded.groups->grid(), loaded.configuration, 0);
    // Any program of the model names all of its parameters.
    if (grid) {
      const sharding::PartitionedProgram part = train::lossPart(
          loaded.configuration, 1, 2 * std::int64_t{grid->context}, storage, *grid, loaded.groups->own());
      const auto layout = runtime::layoutOf(part.program, 1, sharding::FlatLayout::Ownership::anywhere, part.parts);
      loaded.parameters = std::make_unique<runtime::ParameterStore>(layout, device.backend, device.stream, storage,
                                                                    runtime::ParameterStore::Gradients::none);
      train::loadWeights(*source, *loaded.parameters, device);
      return;
    }
    const graph::Program program = model::buildLogits(loaded.configuration, 1, 1, storage);
    std::optional<checkpoint::QuantisedFormat> format;
    if (options.quantize != "none") format = checkpoint::parseQuantisedFormat(options.quantize);
    loaded.parameters = train::loadForInference(*source, program, storage, format, device);
  });
  return loaded;
}

}  // namespace tandem::evaluate
