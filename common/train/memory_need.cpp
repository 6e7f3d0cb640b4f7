#include "common/train/memory_need.h"

#include <set>

#include "common/base/error.h"
#include "common/base/units.h"
#include "common/graph/passes.h"
#include "common/model/transformer.h"
#include "common/train/rank_plan.h"

namespace tandem::train {
namespace {

// Of what all programs of a rank name, once each.
std::int64_t sharedBytes(const RankPlan& plan) {
  std::int64_t bytes = 0;
  std::set<std::string> seen;
  for (const graph::Role role :
       {graph::Role::parameter, graph::Role::frozen, graph::Role::gradient, graph::Role::state}) {
    for (const RankPlan::Run& run : plan.runs) {
      for (const graph::TensorId id : run.program.ofRole(role)) {
        const graph::Tensor& tensor = run.program.tensor(id);
        // Parts are of what the arena holds.
        if (tensor.partOf != graph::none || !seen.insert(tensor.name).second) continue;
        bytes += tensor.shape.count() * base::byteSize(tensor.type);
      }
    }
  }
  return bytes;
}

// Of the micro batches that are under way.
std::int64_t ownBytes(const RankPlan::Run& run) {
  std::int64_t bytes = run.memory.arenaBytes;
  for (const graph::Role role : {graph::Role::input, graph::Role::output}) {
    for (const graph::TensorId id : run.program.ofRole(role)) {
      bytes += run.program.tensor(id).shape.count() * base::byteSize(run.program.tensor(id).type);
    }
  }
  return run.inFlight * bytes;
}

}  // namespace

MemoryNeed memoryNeed(const TrainOptions& options, int ranks) {
  const RankPlan plan = planFirstRank(options, ranks);
  MemoryNeed need;
  need.computing = sharedBytes(plan);
  for (const RankPlan::Run& run : plan.runs) need.computing += ownBytes(run);
  (options.optimizer.statesOnHost ? need.hostStates : need.computing) += plan.optimizerBytes(options);
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
  const sharding::Grid grid = gridOf(options, ranks);
  const std::int64_t rowsToDivide = shareOut(tried, grid).rowsPerRank / grid.microBatchUnit();
  const std::int64_t least = need(1);
  if (least > limit.bytes) {
    throw base::Error(base::ErrorKind::usage,
                      "--micro-batch auto: one row of " + std::to_string(options.sequenceLength) + " tokens needs " +
                          base::formatBytes(least) + " a rank, and there are " + base::formatBytes(limit.bytes) +
                          "; --recompute full, --precision bf16, a smaller --sequence-length or more ranks need less");
  }
  std::int64_t largest = 1;
  for (std::int64_t rows = 2; rows <= rowsToDivide; ++rows) {
    if (rowsToDivide % rows != 0) continue;
    if (need(rows) > limit.bytes) break;
    largest = rows;
  }
  return largest;
}

}  // namespace tandem::train
