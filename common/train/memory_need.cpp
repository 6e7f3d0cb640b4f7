#include "common/train/memory_need.h"

#include "common/base/error.h"
#include "common/base/units.h"
#include "common/graph/passes.h"
#include "common/model/transformer.h"
#include "common/sharding/pipeline.h"
#include "common/train/rank_plan.h"

namespace tandem::train {
namespace {

std::int64_t bytesOf(const graph::Program& program, graph::Role role) {
  std::int64_t bytes = 0;
  for (const graph::TensorId id : program.ofRole(role)) {
    const graph::Tensor& tensor = program.tensor(id);
    if (tensor.partOf != graph::none) continue;  // of what the arena holds
    bytes += tensor.shape.count() * base::byteSize(tensor.type);
  }
  return bytes;
}

}  // namespace

MemoryNeed memoryNeed(const TrainOptions& options, int ranks) {
  const RankPlan plan = planFirstRank(options, ranks);
  const std::int64_t inFlight = sharding::microBatchesInFlight(0, plan.grid.pipeline, plan.shape.microBatches);
  MemoryNeed need;
  need.computing = inFlight * graph::planMemory(plan.program).arenaBytes;
  (options.optimizer.statesOnHost ? need.hostStates : need.computing) += plan.optimizerBytes(options);
  for (const graph::Role role : {graph::Role::parameter, graph::Role::frozen, graph::Role::gradient, graph::Role::state,
                                 graph::Role::input, graph::Role::output}) {
    need.computing += bytesOf(plan.program, role);
  }
  // A checkpoint has moments and masters, whatever the weights are.
  const std::int64_t savedBytes = plan.momentBytes + RankPlan::masterBytes;
  need.checkpointCopy = plan.ownParameters * savedBytes;
  need.checkpoint = model::buildLoss(plan.configuration, 1, 1, options.storage).parameterCount() * savedBytes;
  return need;
}

std::int64_t largestMicroBatch(const TrainOptions& options, int ranks, const MemoryLimit& limit) {
  TrainOptions tried = options;
  const auto need = [&](std::int64_t rows) {
    tried.microBatch = rows;
    const MemoryNeed one = memoryNeed(tried, ranks);
    return one.computing + (limit.isOfHost ? one.hostStates + one.checkpointCopy : 0);
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
