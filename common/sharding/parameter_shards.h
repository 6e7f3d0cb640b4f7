#pragma once
// ZeRO stages 2 and 3 as passes over programs: what a rank computes with is its own shard of the gradients, and of the
// weights, and whole buckets of these live only while they are needed, in the arena that the memory plan lays out.
//
//   ... layer 1's products | gradients of layer 2 go | layer 1's gradients complete, layer 2's sums have come | ...
//   gatherWeights layer 0 (backward)                                               waitForWeights layer 0
//
// A bucket is a layer, or a part of one where it is large (FlatLayout::Named::group).

#include "common/graph/program.h"
#include "common/sharding/flat_layout.h"

namespace tandem::sharding {

// Names of the parameter and the gradient that stand for a rank's shards, float32 or as weights are stored.
constexpr const char* weightShard = "shard of the weights";
constexpr const char* gradientShard = "shard of the gradients";

// ZeRO 2: each bucket of gradients is an activation that its gradients are parts of. It is reduce-scattered right after
// the last of them is written, and waited for when the next one is. Every micro batch does so; sums are added to the
// shard of `rank`.
graph::Program shardGradients(const graph::Program& program, const FlatLayout& layout, int rank);

// ZeRO 3: each bucket of weights is gathered anew wherever a run of nodes reads it, once in the forward pass and once
// in the backward pass. The gathering starts while the nodes in front still compute with at least half as many weights,
// and ends in front of the first that reads it. Of a pipeline stage nothing is gathered in one pass for the other.
graph::Program shardWeights(const graph::Program& program, const FlatLayout& layout, int rank);

}  // namespace tandem::sharding
