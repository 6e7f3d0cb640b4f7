// Sums of the columns of a matrix of a few hundred rows, which lies in the L2 cache since it was just written.
//
// A block takes 32 columns, so that a warp reads whole cache lines, and its warps share the rows: warp w adds rows w,
// w + 8, ...; then the warps' sums are added in their order.
#include "kernels/cuda/column_sums.h"

#include "kernels/cuda/device.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/storage.h"

namespace tandem::kernels::cuda {

namespace {

constexpr int rowWarps = 8;

__global__ void __launch_bounds__(rowWarps* warpLanes)
    columnSumsKernel(const float* parts, std::int64_t rows, std::int64_t stride, std::int64_t width, float* target,
                     bool accumulate) {
  SHARED_ARRAY(float, sums, [rowWarps][warpLanes]);
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * warpLanes + threadIdx.x;
  float sum = 0;
  if (column < width) {
#pragma unroll 4
    for (std::int64_t row = threadIdx.y; row < rows; row += rowWarps) sum += parts[row * stride + column];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= width) return;
  for (int warp = 1; warp < rowWarps; ++warp) sum += sums[warp][threadIdx.x];
  target[column] = accumulate ? target[column] + sum : sum;
}

}  // namespace

void addColumnSums(const float* parts, std::int64_t rows, std::int64_t stride, std::int64_t width, float* target,
                   bool accumulate, cudaStream_t stream) {
  if (width == 0) return;
  check(launch<columnSumsKernel>(
            {dim3(static_cast<unsigned>(ceilDivide(width, warpLanes))), dim3(warpLanes, rowWarps), 0, stream}, parts,
            rows, stride, width, target, accumulate),
        "adding up the gradients of parameters");
}

}  // namespace tandem::kernels::cuda
