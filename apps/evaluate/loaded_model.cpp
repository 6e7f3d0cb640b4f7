#include "apps/evaluate/loaded_model.h"

#include <optional>

#include "common/checkpoint/checkpoint.h"
#include "common/model/transformer.h"
#include "common/train/model_state.h"
#include "common/train/quantised_weights.h"

namespace tandem::evaluate {

void declareModelOptions(CLI::App& app, ModelOptions& options) {
  app.add_option("--checkpoint", options.checkpoint, "A run folder (its newest complete step) or one step's folder")
      ->required()
      ->type_name("FOLDER");
  app.add_option("--precision", options.precision, "Storage of weights and activations: fp32, bf16 or fp16")
      ->type_name("NAME");
  app.add_option("--quantize", options.quantize,
                 "Hold the matrices in fewer bits: int8, or int4 in groups; none: as the checkpoint has them")
      ->check(CLI::IsMember({"none", "int8", "int4"}))
      ->type_name("FORMAT");
  app::declareDeviceOptions(app, options.device);
}

LoadedModel loadModel(comm::Communicator& world, const app::CommonOptions& common, const ModelOptions& options) {
  const base::DType storage = train::parsePrecision(options.precision);
  LoadedModel loaded;
  loaded.chosen = app::chooseDevice(world, common, options.device);
  const train::Device device = loaded.device();
  const checkpoint::Reader reader(world, options.checkpoint);
  comm::agreeOn(world, [&] {
    const std::string place = "checkpoint '" + reader.folder().string() + "'";
    loaded.configuration = model::parseConfiguration(reader.metadata().configuration, "in " + place);
    loaded.tokenizer = reader.metadata().tokenizer;
    loaded.step = reader.metadata().step;
    loaded.folder = reader.folder().string();
    loaded.sequenceLength = train::trainedSequenceLength(reader);
    // Any program of the model names all of its parameters.
    const graph::Program program = model::buildLogits(loaded.configuration, 1, 1, storage);
    std::optional<checkpoint::QuantisedFormat> format;
    if (options.quantize != "none") format = checkpoint::parseQuantisedFormat(options.quantize);
    loaded.parameters = train::loadForInference(reader, program, storage, format, device);
  });
  return loaded;
}

}  // namespace tandem::evaluate
