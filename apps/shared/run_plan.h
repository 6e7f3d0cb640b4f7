#pragma once
// From the options of a training run to a plan of it, for a cluster that is described or for the ranks that there are.

#include <string>

#include "apps/shared/training_options.h"
#include "common/sharding/planner.h"

namespace tandem::app {

// What is to be planned: all that the options leave open.
sharding::PlanRequest planRequest(const train::TrainOptions& options, const TrainingTexts& texts,
                                  const sharding::Cluster& cluster);

// What --dry-run --cluster prints. Reads the descriptions of model and cluster, and nothing else.
std::string describeClusterPlan(const train::TrainOptions& options, const TrainingTexts& texts);

// With --shard auto: measures the ranks that there are, and sets the grid, the recomputation and the micro batch as
// planned for them. With --micro-batch auto: sets the most rows that fit into the memory of every rank; else changes
// nothing. `chosen` is null where nothing is going to be computed; then nothing can be measured. Collective.
void chooseSplit(comm::Communicator& world, const ChosenDevice* chosen, const TrainingTexts& texts,
                 train::TrainOptions& options);

}  // namespace tandem::app
