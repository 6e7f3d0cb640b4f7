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

  // Elements of parameters; `back` without a tied projection.
  std::int64_t frontParameters = 0;
  std::int64_t layerParameters = 0;
  std::int64_t backParameters = 0;

  std::int64_t keptBytes = 0;       // of a row, by each layer, until its backward pass
  std::int64_t transientBytes = 0;  // of a row, alive beside what all layers keep when most is
  std::int64_t inputBytes = 0;      // of a row: tokens, targets, losses and the like
};

StepCounts countStep(const model::Configuration& configuration, std::int64_t sequenceLength, base::DType storage,
                     graph::Recompute recompute);

}  // namespace tandem::sharding
