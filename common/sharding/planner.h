#pragma once
// The planner: how to split a training run over a cluster, from what a step costs and what the machines can do.
//
// It weighs every grid of the cluster's devices with every ZeRO stage, recomputation and micro batch: the memory of the
// fullest rank and the time of a step, from the counts of the model's own program (stage_counts.h) and the rates of the
// cluster (cluster.h). docs/sharding.md has the formulas. What is fastest of all that fits is taken; of plans within a
// percent of it, the simplest.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/graph/passes.h"
#include "common/model/configuration.h"
#include "common/sharding/cluster.h"
#include "common/sharding/grid.h"
#include "common/sharding/rank_program.h"

namespace tandem::sharding {

struct PlanRequest {
  model::Configuration configuration;
  std::int64_t sequenceLength = 0;
  std::int64_t batchTokens = 0;            // of a step
  base::DType storage = base::DType::f32;  // of weights and activations
  base::DType moments = base::DType::f32;  // of the optimizer
  std::int64_t bucketElements = usualBucketElements;
  Cluster cluster;

  // What is given already; the rest is chosen.
  std::optional<Grid> grid;
  std::optional<graph::Recompute> recompute;
  std::optional<std::int64_t> microBatch;
  // Why a grid cannot be used though it fits the model; empty when it can.
  std::function<std::string(const Grid&)> whyRefused = {};
};

// Of the fullest rank, in bytes.
struct PredictedMemory {
  std::int64_t weights = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizerStates = 0;  // moments, and masters of weights in 16 bits
  std::int64_t buckets = 0;      // whole layers' weights and gradients, which ZeRO 2 and 3 hold while they need them
  std::int64_t activations = 0;  // what layers keep, what is alive beside it, inputs and outputs
  std::int64_t exchanges = 0;    // room that sums of gradients need in the host's memory
  std::int64_t total() const { return weights + gradients + optimizerStates + buckets + activations + exchanges; }
};

// Of a step, in seconds, along the path that decides how long it takes.
struct PredictedTime {
  double compute = 0;  // of the slowest stage's micro batches
  double update = 0;   // of the optimizer
  double bubble = 0;   // waiting while the pipeline fills and drains
  double tensor = 0;   // exchanges that computing cannot hide, by axis
  double context = 0;
  double pipeline = 0;
  double data = 0;
  double hidden = 0;  // exchanges beside computing; not part of the total
  double total() const { return compute + update + bubble + tensor + context + pipeline + data; }
};

struct Plan {
  Grid grid;
  graph::Recompute recompute = graph::Recompute::nothing;
  std::int64_t microBatch = 1;    // rows
  std::int64_t microBatches = 1;  // of a rank in a step
  std::vector<std::int64_t> stageLayers;
  PredictedMemory memory;
  PredictedTime time;
};

// Why plans lost, and the best of those that did.
struct Losers {
  std::int64_t count = 0;
  std::string closest;
};

struct Planning {
  std::vector<Plan> best;  // up to five, of different grids; the first is taken
  std::int64_t weighed = 0;
  std::map<std::string, Losers> losers;  // by reason
  const Plan& taken() const { return best.front(); }
};

// Throws Error of kind usage when nothing fits, with what would; and when rows do not divide.
Planning planTraining(const PlanRequest& request);

// One plan's memory and time, whether it fits or not.
Plan predict(const PlanRequest& request, const Grid& grid, graph::Recompute recompute, std::int64_t microBatch);

// A table of the best, the memory and the time of the one taken, and why the others were not.
std::string describe(const PlanRequest& request, const Planning& planning);

// "none", "selective" or "full", as graph::parseRecompute reads them.
std::string recomputeText(graph::Recompute recompute);

}  // namespace tandem::sharding
