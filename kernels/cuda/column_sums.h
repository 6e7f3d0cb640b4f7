#pragma once
// The second stage of gradients of parameters: blocks have left one row of sums each, which are added up in order.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace tandem::kernels::cuda {

// target[i] (+)= the sum over r < rows of parts[r * stride + i], for i < width; with no rows it is 0.
void addColumnSums(const float* parts, std::int64_t rows, std::int64_t stride, std::int64_t width, float* target,
                   bool accumulate, cudaStream_t stream);

}  // namespace tandem::kernels::cuda
