#include "common/sharding/rank_program.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "common/base/error.h"
#include "common/model/transformer.h"
#include "common/sharding/context.h"
#include "common/sharding/data_parallel.h"
#include "common/sharding/parameter_shards.h"
#include "common/sharding/pipeline.h"

namespace tandem::sharding {
namespace {

// Layers count from 1, what lies around them is 0, and a table outside has the negative of its number.
std::int32_t groupOf(const graph::Tensor& parameter, graph::TensorId id) {
  constexpr std::string_view layers = "layers.";
  if (parameter.name.starts_with(layers)) return std::stoi(parameter.name.substr(layers.size())) + 1;
  return parameter.shape.rank() >= 2 ? -1 - id : 0;
}

// What a tensor rank has of one stage of the model.
PartitionedProgram partOfStage(const graph::Program& whole, int stage, std::span<const Range> layers, const Grid& grid,
                               int tensorRank, const std::optional<graph::Adapters>& adapters) {
  PartitionedProgram part =
      splitOverTensorRanks(stageProgram(whole, stage, layers, grid.pipeline), tensorRank, grid.tensor);
  if (adapters) part.program = graph::adapt(part.program, *adapters);
  part.program = keepWhatIsSent(part.program);
  for (const std::string& name : sharedByStages(whole, layers)) {
    const auto found = part.parts.find(name);
    if (stage > 0 && found != part.parts.end()) found->second.markCopy();
  }
  return part;
}

graph::Program wholeLoss(const model::Configuration& configuration, std::int64_t rows, std::int64_t sequenceLength,
                         base::DType storage, const Grid& grid, const Coordinates& own) {
  return splitOverContextRanks(model::buildLoss(configuration, rows, sequenceLength / grid.context, storage),
                               own.context, grid.context);
}

void addParameters(const graph::Program& program, const std::map<std::string, Part>& parts, graph::Role role,
                   bool byLayer, std::int32_t group, std::vector<FlatLayout::Named>& parameters) {
  for (const graph::TensorId id : program.ofRole(role)) {
    const graph::Tensor& tensor = program.tensor(id);
    parameters.push_back({tensor.name, tensor.shape});
    const auto part = parts.find(tensor.name);
    if (part != parts.end()) parameters.back().part = part->second;
    parameters.back().group = byLayer ? groupOf(tensor, id) : group;
  }
}

}  // namespace

PartitionedProgram lossPart(const model::Configuration& configuration, std::int64_t rows, std::int64_t sequenceLength,
                            base::DType storage, const Grid& grid, const Coordinates& own,
                            const std::optional<graph::Adapters>& adapters, std::span<const Range> layersOfStages) {
  TANDEM_ASSERT(grid.virtualStages == 1, "a rank has several parts");
  const graph::Program whole = wholeLoss(configuration, rows, sequenceLength, storage, grid, own);
  const std::vector<Range> layers = layersOfStages.empty() ? stageLayers(whole, grid.pipeline)
                                                           : std::vector(layersOfStages.begin(), layersOfStages.end());
  return partOfStage(whole, own.pipeline, layers, grid, own.tensor, adapters);
}

std::vector<PartitionedProgram> lossParts(const model::Configuration& configuration, std::int64_t rows,
                                          std::int64_t sequenceLength, base::DType storage, const Grid& grid,
                                          const Coordinates& own, const std::optional<graph::Adapters>& adapters) {
  const graph::Program whole = wholeLoss(configuration, rows, sequenceLength, storage, grid, own);
  const std::vector<Range> layers = stageLayers(whole, grid.stages());
  std::vector<PartitionedProgram> parts;
  for (int stage = own.pipeline; stage < grid.stages(); stage += grid.pipeline) {
    parts.push_back(partOfStage(whole, stage, layers, grid, own.tensor, adapters));
  }
  return parts;
}

graph::Program trainingProgram(const graph::Program& loss, graph::Recompute recompute) {
  return withRecomputation(withBackwardPass(loss), recompute);
}

graph::Program withBackwardPass(const graph::Program& loss) {
  return graph::fuse(graph::differentiate(graph::fuse(loss)));
}

graph::Program withRecomputation(const graph::Program& differentiated, graph::Recompute recompute) {
  return keepWhatIsSent(graph::recompute(differentiated, recompute));
}

std::int64_t bucketElements(std::span<const PartitionedProgram> parts, const Grid& grid, std::int64_t most) {
  if (grid.sharesGradients()) return most;
  constexpr std::int64_t worthAnExchange = 1 << 16;
  std::int64_t total = 0;
  for (const PartitionedProgram& part : parts) {
    for (const graph::TensorId id : part.program.ofRole(graph::Role::parameter)) {
      const graph::Tensor& tensor = part.program.tensor(id);
      const auto found = part.parts.find(tensor.name);
      total += found != part.parts.end() ? found->second.whole().count() : tensor.shape.count();
    }
  }
  return std::min(most, std::max(total / 16, worthAnExchange));
}

FlatLayout layoutOf(const graph::Program& program, int ranks, FlatLayout::Ownership ownership,
                    const std::map<std::string, Part>& parts, graph::Role role, std::int64_t bucketElements,
                    bool byLayer) {
  std::vector<FlatLayout::Named> parameters;
  addParameters(program, parts, role, byLayer, 0, parameters);
  return FlatLayout(parameters, ranks, ownership, bucketElements);
}

FlatLayout layoutOf(std::span<const PartitionedProgram> parts, int ranks, FlatLayout::Ownership ownership,
                    std::int64_t bucketElements, bool byLayer) {
  std::vector<FlatLayout::Named> parameters;
  std::int32_t group = 0;
  // By layer, parts are apart anyway: each has layers of its own.
  for (const PartitionedProgram& part : parts) {
    addParameters(part.program, part.parts, graph::Role::parameter, byLayer, group++, parameters);
  }
  return FlatLayout(parameters, ranks, ownership, bucketElements);
}

graph::Program withExchanges(const graph::Program& program, const FlatLayout& layout, const Grid& grid, int rank) {
  if (!grid.sharesGradients()) return placeReduceScatters(program, layout);
  const graph::Program result = shardGradients(program, layout, rank);
  return grid.sharesWeights() ? shardWeights(result, layout, rank) : result;
}

}  // namespace tandem::sharding
