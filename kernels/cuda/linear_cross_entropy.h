#pragma once
// LinearCrossEntropy with a given size of its chunks, which run() chooses by memory.

#include "kernels/cuda/operators.h"

namespace tandem::kernels::cuda {

// The logits of `chunkRows` rows exist at once, in float32, and their gradients in the type of the input.
void runInChunks(const LinearCrossEntropy& call, std::int64_t chunkRows, Context& context);

}  // namespace tandem::kernels::cuda
