#pragma once
// What a run will take, before it takes it.

#include <cstdint>

#include "common/train/options.h"

namespace tandem::train {

struct MemoryNeed {
  std::int64_t computing = 0;       // bytes of rank 0 where it computes: weights, gradients, optimizer, activations
  std::int64_t checkpointCopy = 0;  // of rank 0 on its host, while a checkpoint is being written
  std::int64_t checkpoint = 0;      // a checkpoint's size on disk, of all ranks
};

// By the plan that describePlan prints. Reads the model's file only.
MemoryNeed memoryNeed(const TrainOptions& options, int ranks);

}  // namespace tandem::train
