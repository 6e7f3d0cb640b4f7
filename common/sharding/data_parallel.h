#pragma once
// Data parallelism as passes over programs: where in the backward pass each bucket of gradients is complete, and where
// in the forward pass each bucket of weights is needed.

#include "common/graph/program.h"
#include "common/sharding/flat_layout.h"

namespace tandem::sharding {

// Inserts a reduceScatter node for each bucket right after the last node that writes one of the bucket's gradients.
graph::Program placeReduceScatters(const graph::Program& program, const FlatLayout& layout);

// Inserts a waitForWeights node for each bucket right before the first node that reads one of its weights, for ranks
// that hold all weights and update shards of them: the others' may still be on their way when a step begins.
graph::Program placeWeightWaits(const graph::Program& program, const FlatLayout& layout);

}  // namespace tandem::sharding
