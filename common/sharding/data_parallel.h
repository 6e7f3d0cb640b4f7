#pragma once
// Data parallelism as a pass over programs: where in the backward pass each bucket of gradients is complete.

#include "common/graph/program.h"
#include "common/sharding/flat_layout.h"

namespace tandem::sharding {

// Inserts a reduceScatter node for each bucket right after the last node that writes one of the bucket's gradients.
graph::Program placeReduceScatters(const graph::Program& program, const FlatLayout& layout);

}  // namespace tandem::sharding
