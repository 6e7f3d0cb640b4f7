#pragma once
// Data parallelism as passes over programs: where in the backward pass each bucket of gradients is complete, and where
// in the forward pass each bucket of weights is needed. And what it exchanges.

#include <cstdint>

#include "common/base/dtype.h"
#include "common/graph/program.h"
#include "common/sharding/flat_layout.h"
#include "common/sharding/grid.h"

namespace tandem::sharding {

// Inserts a reduceScatter node for each bucket right after the last node that writes one of the bucket's gradients.
graph::Program placeReduceScatters(const graph::Program& program, const FlatLayout& layout);

// Inserts a waitForWeights node for each bucket right before the first node that reads one of its weights, for ranks
// that hold all weights and update shards of them: the others' may still be on their way when a step begins.
graph::Program placeWeightWaits(const graph::Program& program, const FlatLayout& layout);

// Bytes that a rank which holds so many parameters sends in a step to those that hold the same: gradients, and weights
// in the type they are stored in. docs/sharding.md has the table.
double parameterExchangeBytes(const Grid& grid, std::int64_t parameters, base::DType storage,
                              std::int64_t microBatches);

}  // namespace tandem::sharding
