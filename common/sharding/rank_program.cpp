#include "common/sharding/rank_program.h"

#include <algorithm>
#include <string_view>
#include <vector>

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

}  // namespace

PartitionedProgram lossPart(const model::Configuration& configuration, std::int64_t rows, std::int64_t sequenceLength,
                            base::DType storage, const Grid& grid, const Coordinates& own,
                            const std::optional<graph::Adapters>& adapters, std::span<const Range> layersOfStages) {
  const graph::Program whole = splitOverContextRanks(
      model::buildLoss(configuration, rows, sequenceLength / grid.context, storage), own.context, grid.context);
  const std::vector<Range> layers = layersOfStages.empty() ? stageLayers(whole, grid.pipeline)
                                                           : std::vector(layersOfStages.begin(), layersOfStages.end());
  PartitionedProgram part = splitOverTensorRanks(stageProgram(whole, own.pipeline, layers), own.tensor, grid.tensor);
  if (adapters) part.program = graph::adapt(part.program, *adapters);
  part.program = keepWhatIsSent(part.program);
  for (const std::string& name : sharedByStages(whole, layers)) {
    const auto found = part.parts.find(name);
    if (own.pipeline > 0 && found != part.parts.end()) found->second.markCopy();
  }
  return part;
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

std::int64_t bucketElements(const PartitionedProgram& part, const Grid& grid, std::int64_t most) {
  if (grid.sharesGradients()) return most;
  constexpr std::int64_t worthAnExchange = 1 << 16;
  std::int64_t total = 0;
  for (const graph::TensorId id : part.program.ofRole(graph::Role::parameter)) {
    const graph::Tensor& tensor = part.program.tensor(id);
    const auto found = part.parts.find(tensor.name);
    total += found != part.parts.end() ? found->second.whole().count() : tensor.shape.count();
  }
  return std::min(most, std::max(total / 16, worthAnExchange));
}

FlatLayout layoutOf(const graph::Program& program, int ranks, FlatLayout::Ownership ownership,
                    const std::map<std::string, Part>& parts, graph::Role role, std::int64_t bucketElements,
                    bool byLayer) {
  std::vector<FlatLayout::Named> parameters;
  for (const graph::TensorId id : program.ofRole(role)) {
    const graph::Tensor& tensor = program.tensor(id);
    parameters.push_back({tensor.name, tensor.shape});
    const auto part = parts.find(tensor.name);
    if (part != parts.end()) parameters.back().part = part->second;
    if (byLayer) parameters.back().group = groupOf(tensor, id);
  }
  return FlatLayout(parameters, ranks, ownership, bucketElements);
}

graph::Program withExchanges(const graph::Program& program, const FlatLayout& layout, const Grid& grid, int rank) {
  if (!grid.sharesGradients()) return placeReduceScatters(program, layout);
  const graph::Program result = shardGradients(program, layout, rank);
  return grid.sharesWeights() ? shardWeights(result, layout, rank) : result;
}

}  // namespace tandem::sharding
