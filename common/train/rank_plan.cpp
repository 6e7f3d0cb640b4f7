#include "common/train/rank_plan.h"

#include "common/sharding/pipeline.h"
#include "common/sharding/rank_program.h"
#include "common/train/quantised_weights.h"
#include "common/train/trainer.h"

namespace tandem::train {

RankPlan planFirstRank(const TrainOptions& options, int ranks) {
  RankPlan plan;
  plan.configuration = configurationOf(options);
  plan.grid = gridOf(options, ranks);
  sharding::demandFitting(plan.grid, plan.configuration, options.sequenceLength);
  plan.shape = shareOut(options, plan.grid);
  const std::vector<sharding::PartitionedProgram> parts =
      sharding::lossParts(plan.configuration, plan.shape.microBatch, options.sequenceLength, options.storage, plan.grid,
                          {}, adaptersOf(options.adapters));
  const sharding::FlatLayout layout = layoutOf(parts, options, plan.grid);
  const std::vector<sharding::StageTask> schedule =
      sharding::stageSchedule(0, plan.grid.pipeline, plan.grid.virtualStages, plan.shape.microBatches);
  for (std::size_t run = 0; run < parts.size(); ++run) {
    graph::Program program =
        sharding::withExchanges(sharding::trainingProgram(parts[run].program, options.recompute), layout, plan.grid, 0);
    if (options.adapters) program = graph::quantise(program, frozenFormats(program, *options.adapters));
    graph::MemoryPlan memory = graph::planMemory(program);
    plan.runs.push_back({.program = std::move(program),
                         .memory = std::move(memory),
                         .inFlight = sharding::microBatchesInFlight(schedule, static_cast<int>(run))});
  }
  plan.ownParameters = layout.shardCount(0);
  plan.momentBytes = 2 * base::byteSize(options.optimizer.states);
  return plan;
}

}  // namespace tandem::train
