#pragma once
// What a micro batch of a model costs a rank, counted from the model's own program: the operations and the memory
// traffic of its nodes, and the memory that a plan of its buffers takes.
//
// All counts are of one row, in a program of a few layers, from which any number of layers and rows follows: every
// layer is like the others, and each activation has the rows in front.

#include <cstdint>
#include <vector>

#include "common/graph/passes.h"
#include "common/model/configuration.h"

namespace tandem::sharding {

struct NodeCount {
  double flops = 0;
  double parameterBytes = 0;   // of weights and their gradients: the same for any number of rows
  double activationBytes = 0;  // grows with the rows
  bool backward = false;
  bool attention = false;
};

struct StepCounts {
  std::vector<NodeCount> front;  // the embedding, forward and backward
  std::vector<NodeCount> layer;  // one layer
  std::vector<NodeCount> back;   // last norm, projection, loss
};

// What one tensor rank holds, the first, which has no less than another.
struct RankCounts {
  // Elements of parameters; `back` without a tied projection.
  std::int64_t frontParameters = 0;
  std::int64_t layerParameters = 0;
  std::int64_t backParameters = 0;

  // Bytes of a row's activations: what a layer keeps until its backward pass, what is alive beside it when most is, and
  // tokens, targets, losses and the like.
  std::int64_t kept = 0;
  std::int64_t transient = 0;
  std::int64_t inputs = 0;
};

StepCounts countStep(const model::Configuration& configuration, std::int64_t sequenceLength, base::DType storage,
                     graph::Recompute recompute);
RankCounts countRank(const model::Configuration& configuration, std::int64_t sequenceLength, base::DType storage,
                     graph::Recompute recompute, int tensorRanks);

}  // namespace tandem::sharding
