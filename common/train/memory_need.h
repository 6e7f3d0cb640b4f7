#pragma once
// What a run will take, before it takes it.

#include <cstdint>

#include "common/train/options.h"

namespace tandem::train {

struct MemoryNeed {
  std::int64_t computing = 0;       // bytes of rank 0 where it computes: weights, gradients, optimizer, activations
  std::int64_t hostStates = 0;      // of rank 0 on its host: the optimizer's, where they are not counted above
  std::int64_t checkpointCopy = 0;  // of rank 0 on its host, while a checkpoint is being written
  std::int64_t checkpoint = 0;      // a checkpoint's size on disk, of all ranks
};

// By the plan that describePlan prints. Reads the model's file only.
MemoryNeed memoryNeed(const TrainOptions& options, int ranks);

// Bytes that a rank may take.
struct MemoryLimit {
  std::int64_t bytes = 0;
  bool isOfHost = true;  // what lies on the host takes of it too: on processors, and where a GPU shares memory
};

// The largest micro batch that fits, of those that divide a rank's rows. Throws Error of kind usage when not even one
// row does, with what it needs and what would need less.
std::int64_t largestMicroBatch(const TrainOptions& options, int ranks, const MemoryLimit& limit);

}  // namespace tandem::train
