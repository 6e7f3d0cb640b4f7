#include "common/train/rank_plan.h"

#include "common/sharding/rank_program.h"
#include "common/train/quantised_weights.h"
#include "common/train/trainer.h"

namespace tandem::train {

RankPlan planFirstRank(const TrainOptions& options, int ranks) {
  RankPlan plan;
  plan.configuration = configurationOf(options);
  plan.grid = gridOf(options, ranks);
  sharding::demandFitting(plan.grid, plan.configuration, options.sequenceLength);
  plan.shape = shareOut(options, plan.grid.data);
  const sharding::PartitionedProgram loss =
      sharding::lossPart(plan.configuration, plan.shape.microBatch, options.sequenceLength, options.storage, plan.grid,
                         {}, adaptersOf(options.adapters));
  const sharding::FlatLayout layout = layoutOf(loss, options, plan.grid);
  plan.program =
      sharding::withExchanges(sharding::trainingProgram(loss.program, options.recompute), layout, plan.grid, 0);
  if (options.adapters) plan.program = graph::quantise(plan.program, frozenFormats(plan.program, *options.adapters));
  plan.ownParameters = layout.shardCount(0);
  plan.momentBytes = 2 * base::byteSize(options.optimizer.states);
  return plan;
}

}  // namespace tandem::train
