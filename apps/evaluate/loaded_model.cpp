#include "apps/evaluate/loaded_model.h"

#include <optional>

#include "common/checkpoint/chat_template.h"
#include "common/checkpoint/model_source.h"
#include "common/sharding/decoding.h"
#include "common/sharding/rank_program.h"
#include "common/train/model_state.h"
#include "common/train/quantised_weights.h"

namespace tandem::evaluate {
namespace {

bool isQuantised(const checkpoint::ModelSource& source, const std::string& quantize) {
  return quantize != "none" || train::holdsQuantised(source);
}

void demandSplit(const sharding::Grid& grid, const checkpoint::ModelSource& source, const std::string& quantize,
                 Work work, std::int64_t sequenceLength) {
  if (work == Work::decoding)
    return sharding::demandDecoding(grid, source.configuration(), isQuantised(source, quantize));
  sharding::demandFitting(grid, source.configuration(), sequenceLength);
  if (quantize == "none" || (grid.tensor == 1 && grid.virtualStages == 1)) return;
  std::vector<sharding::Grid> fitting = sharding::fittingGrids(grid.ranks(), source.configuration(), sequenceLength);
  std::erase_if(fitting, [](const sharding::Grid& each) { return each.tensor > 1; });
  const std::string with = "the loss with --quantize " + quantize + " is computed of ";
  sharding::refuseGrid(
      grid,
      grid.tensor > 1 ? with + "whole matrices, which tp=" + std::to_string(grid.tensor) + " would cut"
                      : with + "one run of layers a rank, and vp=" + std::to_string(grid.virtualStages) + " has more",
      fitting);
}

// What this rank of the grid has of the model: each run of layers.
std::vector<sharding::PartitionedProgram> sharesOf(const LoadedModel& loaded, base::DType storage, bool quantised,
                                                   Work work, std::int64_t sequenceLength) {
  const sharding::Grid& grid = loaded.groups->grid();
  const sharding::Coordinates& own = loaded.groups->own();
  if (work == Work::decoding) {
    return {sharding::DecodingSplit(loaded.configuration, grid, own, quantised).parameters(storage)};
  }
  return sharding::lossParts(loaded.configuration, 1, sequenceLength, storage, grid, own);
}

std::unique_ptr<runtime::ParameterStore> loadParameters(const LoadedModel& loaded,
                                                        const checkpoint::ModelSource& source,
                                                        const ModelOptions& options, base::DType storage, Work work,
                                                        std::int64_t sequenceLength) {
  const train::Device device = loaded.device();
  const std::vector<sharding::PartitionedProgram> shares =
      sharesOf(loaded, storage, isQuantised(source, options.quantize), work, sequenceLength);
  if (work == Work::loss && (loaded.groups->grid().tensor > 1 || shares.size() > 1)) {
    // Quantised matrices are read as numbers.
    const auto layout = sharding::layoutOf(shares, 1, sharding::FlatLayout::Ownership::anywhere);
    auto parameters = std::make_unique<runtime::ParameterStore>(layout, device.backend, device.stream, storage,
                                                                runtime::ParameterStore::Gradients::none);
    train::loadWeights(source, *parameters, device);
    return parameters;
  }
  std::optional<checkpoint::QuantisedFormat> format;
  if (options.quantize != "none") format = checkpoint::parseQuantisedFormat(options.quantize);
  return train::loadForInference(source, shares[0].program, storage, format, device, shares[0].parts);
}

}  // namespace

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
  declareShard(app, options.shard);
  app::declareDeviceOptions(app, options.device);
}

void declareShard(CLI::App& app, std::string& text) {
  app.add_option("--shard", text,
                 "How the model is split over the ranks, such as tp=2 or pp=2; by default every rank has all of it")
      ->type_name("GRID");
}

void declareCaches(CLI::App& app, model::CacheFormat& caches) {
  const auto choose = [&caches](const std::string& name) {
    caches = name == "int8" ? model::CacheFormat::int8 : model::CacheFormat::asStored;
  };
  app.add_option_function<std::string>("--kv-cache", choose,
                                       "Hold keys and values in fewer bits: int8, with a scale for each head and "
                                       "position; none: as computed")
      ->check(CLI::IsMember({"none", "int8"}))
      ->type_name("FORMAT");
}

LoadedModel loadModel(comm::Communicator& world, const app::CommonOptions& common, const ModelOptions& options,
                      Work work, std::int64_t sequenceLength) {
  const base::DType storage = train::parsePrecision(options.precision);
  const sharding::Grid grid =
      options.shard.empty() ? sharding::Grid{.data = world.size()} : sharding::parseGrid(options.shard, world.size());
  LoadedModel loaded;
  loaded.chosen = app::chooseDevice(world, common, options.device);
  const train::Device device = loaded.device();
  std::int64_t rowLength = 0;
  const std::unique_ptr<checkpoint::ModelSource> source = checkpoint::openModel(world, options.checkpoint);
  comm::agreeOn(world, [&] {
    loaded.configuration = source->configuration();
    loaded.tokenizer = source->metadata().tokenizer;
    loaded.chatTemplate = checkpoint::chatTemplateOf(source->metadata());
    loaded.step = source->metadata().step;
    loaded.folder = source->place().string();
    loaded.sequenceLength = train::trainedSequenceLength(*source);
    rowLength = sequenceLength > 0 ? sequenceLength : loaded.sequenceLength;
    demandSplit(grid, *source, options.quantize, work, rowLength);
  });
  loaded.groups = std::make_unique<train::RankGroups>(world, device, grid);
  if (work == Work::decoding && grid.tensor * grid.pipeline > 1) {
    loaded.split = std::make_unique<runtime::DecodingRanks>(loaded.groups->host(), loaded.groups->device());
  }
  comm::agreeOn(world, [&] { loaded.parameters = loadParameters(loaded, *source, options, storage, work, rowLength); });
  return loaded;
}

}  // namespace tandem::evaluate
