#include "common/train/memory_need.h"

#include "common/base/error.h"
#include "common/base/units.h"
#include "common/graph/passes.h"
#include "common/model/configuration.h"
#include "common/model/transformer.h"
#include "common/runtime/parameter_store.h"
#include "common/sharding/pipeline.h"
#include "common/train/trainer.h"

namespace tandem::train {
namespace {

std::int64_t bytesOf(const graph::Program& program, graph::Role role) {
  std::int64_t bytes = 0;
  for (const graph::TensorId id : program.ofRole(role)) {
    const graph::Tensor& tensor = program.tensor(id);
    bytes += tensor.shape.count() * base::byteSize(tensor.type);
  }
  return bytes;
}

}  // namespace

MemoryNeed memoryNeed(const TrainOptions& options, int ranks) {
  const model::Configuration configuration = configurationOf(options);
  const sharding::Grid grid = gridOf(options, ranks);
  sharding::demandFitting(grid, configuration, options.sequenceLength);
  const BatchShape shape = shareOut(options, grid.data);
  // Of rank 0, which has the embedding, and in a pipeline the most micro batches in flight.
  const sharding::PartitionedProgram loss = lossPart(configuration, shape.microBatch, options.sequenceLength,
                                                     options.storage, grid, {}, adaptersOf(options.adapters));
  const graph::Program program = trainingProgram(loss.program, options.recompute);
  const std::int64_t inFlight = sharding::microBatchesInFlight(0, grid.pipeline, shape.microBatches);
  const auto ownership = options.optimizer.method == optim::Method::muon
                             ? sharding::FlatLayout::Ownership::wholeParameters
                             : sharding::FlatLayout::Ownership::anywhere;
  const std::int64_t ownParameters = runtime::layoutOf(program, grid.sharers(), ownership, loss.parts).shardCount(0);
  // Two moments, and beside weights of less than 32 bits their float32 masters; a checkpoint has all three.
  const std::int64_t momentBytes = 2 * base::byteSize(options.optimizer.states), stateBytes = momentBytes + 4;
  MemoryNeed need;
  need.computing = inFlight * graph::planMemory(program).arenaBytes +
                   ownParameters * (options.storage == base::DType::f32 ? momentBytes : stateBytes);
  for (const graph::Role role : {graph::Role::parameter, graph::Role::frozen, graph::Role::gradient, graph::Role::state,
                                 graph::Role::input, graph::Role::output}) {
    need.computing += bytesOf(program, role);
  }
  need.checkpointCopy = ownParameters * stateBytes;
  need.checkpoint = model::buildLoss(configuration, 1, 1, options.storage).parameterCount() * stateBytes;
  return need;
}

std::int64_t largestMicroBatch(const TrainOptions& options, int ranks, const MemoryLimit& limit) {
  TrainOptions tried = options;
  const auto need = [&](std::int64_t rows) {
    tried.microBatch = rows;
    const MemoryNeed one = memoryNeed(tried, ranks);
    return one.computing + (limit.holdsCheckpointCopy ? one.checkpointCopy : 0);
  };
  tried.microBatch = 1;
  const std::int64_t rowsPerRank = shareOut(tried, gridOf(options, ranks).data).rowsPerRank;
  const std::int64_t least = need(1);
  if (least > limit.bytes) {
    throw base::Error(base::ErrorKind::usage,
                      "--micro-batch auto: one row of " + std::to_string(options.sequenceLength) + " tokens needs " +
                          base::formatBytes(least) + " a rank, and there are " + base::formatBytes(limit.bytes) +
                          "; --recompute full, --precision bf16, a smaller --sequence-length or more ranks need less");
  }
  std::int64_t largest = 1;
  for (std::int64_t rows = 2; rows <= rowsPerRank; ++rows) {
    if (rowsPerRank % rows != 0) continue;
    if (need(rows) > limit.bytes) break;
    largest = rows;
  }
  return largest;
}

}  // namespace tandem::train
