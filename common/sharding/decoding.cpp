#include "common/sharding/decoding.h"

#include <algorithm>

#include "common/sharding/pipeline.h"
#include "kernels/quantised.h"

namespace tandem::sharding {
namespace {

constexpr std::int64_t group = kernels::quantisedGroup;

std::int64_t groupsOf(std::int64_t count, std::int64_t size) { return (count + size - 1) / size; }

// Where a tensor rank's heads begin among the columns of all heads.
std::int64_t firstHeadColumn(const model::Configuration& c, int ranks, int rank) {
  return headShare(c.heads, c.kvHeads, ranks, rank).heads.begin * c.headSize;
}

std::string whyNotDecoding(const Grid& grid, const model::Configuration& c, bool quantised) {
  const std::string tensor = "tp=" + std::to_string(grid.tensor), shared = std::to_string(group);
  if (grid.context > 1) {
    return "cp=" + std::to_string(grid.context) +
           " shares out the positions of whole rows, and decoding has one new position at a time";
  }
  if (grid.virtualStages > 1) {
    return "vp=" + std::to_string(grid.virtualStages) +
           " interleaves micro batches of whole rows, and decoding has one new position at a time; leave vp out";
  }
  if (!quantised || grid.tensor == 1) return "";
  for (int rank = 1; rank < grid.tensor; ++rank) {
    const std::int64_t column = firstHeadColumn(c, grid.tensor, rank);
    if (column % group == 0) continue;
    return tensor + " cuts the heads of " + std::to_string(c.headSize) + " columns at column " +
           std::to_string(column) + ", and quantised matrices only between groups of " + shared +
           " columns, which share a scale";
  }
  const std::int64_t groups = groupsOf(c.mlpWidth, group);
  if (grid.tensor <= groups) return "";
  return tensor + " is more than the " + std::to_string(groups) + " groups of " + shared +
         " columns of the MLP, which share a scale in quantised matrices";
}

}  // namespace

DecodingSplit::DecodingSplit(const model::Configuration& configuration, const Grid& grid, const Coordinates& own,
                             bool quantised, model::CacheFormat caches)
    : configuration_(configuration), grid_(grid), own_(own), columnGroup_(quantised ? group : 1), caches_(caches) {
  // The projection onto the vocabulary counts with the last stage, of which the body's programs know nothing.
  layers_ = grid.pipeline == 1 ? std::vector<Range>{{0, configuration.layers}}
                               : stageLayers(model::buildLogits(configuration, 1, 1, graph::DType::f32), grid.pipeline);
}

PartitionedProgram DecodingSplit::part(std::int64_t batch, std::int64_t fresh, std::int64_t capacity,
                                       graph::DType storage) const {
  const graph::Program whole = model::buildDecode(configuration_, batch, fresh, capacity, storage, caches_);
  return splitDecoding(stageProgram(whole, own_.pipeline, layers_, grid_.pipeline), own_.tensor, grid_.tensor,
                       columnGroup_);
}

graph::Program DecodingSplit::body(std::int64_t batch, std::int64_t fresh, std::int64_t capacity,
                                   graph::DType storage) const {
  return keepWhatIsSent(part(batch, fresh, capacity, storage).program);
}

graph::Program DecodingSplit::head(std::int64_t rows, graph::DType storage) const {
  model::Configuration own = configuration_;
  own.vocabularySize = tokens().count;
  return model::buildHead(own, rows, storage);
}

// Whole blocks of rows, as quantised matrices have them in memory.
Range DecodingSplit::tokensOf(int tensorRank) const {
  constexpr std::int64_t block = kernels::quantisedBlock;
  const std::int64_t count = configuration_.vocabularySize;
  const Range blocks = evenShare(groupsOf(count, block), grid_.tensor, tensorRank);
  const std::int64_t begin = blocks.begin * block;
  return {begin, std::min(blocks.end() * block, count) - begin};
}

std::int64_t DecodingSplit::firstHeadRow() const {
  return configuration_.tiedEmbeddings && own_.pipeline == 0 ? tokens().begin : 0;
}

PartitionedProgram DecodingSplit::parameters(graph::DType storage) const {
  PartitionedProgram result = part(1, 1, 1, storage);
  if (!hasHead() || result.program.find(headMatrix()) != graph::none) return result;
  const base::Shape whole = {configuration_.vocabularySize, configuration_.width};
  const Part own(whole, 0, {{tokens(), own_.tensor, 1}}, own_.tensor);
  result.program.addTensor(headMatrix(), own.shape(), storage, graph::Role::parameter);
  result.parts[headMatrix()] = own;
  return result;
}

void demandDecoding(const Grid& grid, const model::Configuration& configuration, bool quantised) {
  demandFitting(grid, configuration, 0);
  const std::string reason = whyNotDecoding(grid, configuration, quantised);
  if (reason.empty()) return;
  std::vector<Grid> fitting = fittingGrids(grid.ranks(), configuration, 0);
  std::erase_if(fitting, [&](const Grid& each) { return !whyNotDecoding(each, configuration, quantised).empty(); });
  refuseGrid(grid, reason, fitting);
}

}  // namespace tandem::sharding
