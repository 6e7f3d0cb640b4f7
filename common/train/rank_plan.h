#pragma once
// What rank 0 of a run will hold, made without a run: for telling of it, and for counting its memory.

#include <cstdint>
#include <vector>

#include "common/graph/passes.h"
#include "common/model/configuration.h"
#include "common/sharding/grid.h"
#include "common/train/options.h"

namespace tandem::train {

struct RankPlan {
  model::Configuration configuration;
  sharding::Grid grid;
  BatchShape shape;
  // Of rank 0, which has the embedding, and in a pipeline the most micro batches in flight: a micro batch of each run
  // of layers that it holds, and how many of them are under way at once.
  struct Run {
    graph::Program program;
    graph::MemoryPlan memory;
    std::int64_t inFlight = 1;
  };
  std::vector<Run> runs;
  std::int64_t ownParameters = 0;  // that it updates
  std::int64_t momentBytes = 0;    // of both moments of a parameter

  // Beside moments, weights of less than 32 bits have float32 masters.
  static constexpr std::int64_t masterBytes = 4;
  std::int64_t optimizerBytes(const TrainOptions& options) const {
    return ownParameters * (momentBytes + (options.storage == base::DType::f32 ? 0 : masterBytes));
  }
};

// Throws Error of kind usage for a grid or a batch that does not fit. Reads the model's file only.
RankPlan planFirstRank(const TrainOptions& options, int ranks);

}  // namespace tandem::train
