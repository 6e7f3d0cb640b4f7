// A block sums a tile of columns over a run of rows: its 32 lanes lie along the columns, 16 bytes each, so that a warp
// reads whole lines, and its 8 warps take rows by turns. Memory bounds it: the runs are as many as fill the device, and
// what they made is added up in a second launch.
#include "kernels/cuda/bias_gradient.h"

#include <algorithm>

#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/storage.h"

namespace tandem::kernels::cuda {

namespace {

constexpr int warps = 8;
constexpr int threads = warps * warpLanes;
constexpr int rowsInFlight = 4;  // that a thread has loaded before it adds the first
constexpr std::int64_t blocksPerMultiprocessor = 4;
constexpr std::int64_t shortestRun = 64;  // rows: less is not worth a block

// Run r = blockIdx.y covers rows [r, r + 1) * runRows and writes its sums to parts + r * columns.
template <class T, int N>
__global__ void __launch_bounds__(threads)
    biasGradientKernel(const T* matrix, std::int64_t rows, std::int64_t columns, std::int64_t runRows, float* parts) {
  SHARED_ARRAY(float, ofWarps, [warps][warpLanes * N]);
  const int lane = static_cast<int>(threadIdx.x) % warpLanes, warp = static_cast<int>(threadIdx.x) / warpLanes;
  const std::int64_t tile = static_cast<std::int64_t>(blockIdx.x) * warpLanes * N;
  const std::int64_t column = tile + lane * N;
  const std::int64_t first = blockIdx.y * runRows, last = min(rows, first + runRows);
  float sum[N] = {};
  if (column < columns) {
    for (std::int64_t row = first + warp; row < last; row += warps * rowsInFlight) {
      Packed<N, T> packed[rowsInFlight];
#pragma unroll
      for (int i = 0; i < rowsInFlight; ++i) {
        if (row + i * warps < last) packed[i].load(matrix + (row + i * warps) * columns + column);
      }
#pragma unroll
      for (int i = 0; i < rowsInFlight; ++i) {
        float values[N];
        packed[i].unpack(values);
#pragma unroll
        for (int j = 0; j < N; ++j) sum[j] += row + i * warps < last ? values[j] : 0.0f;
      }
    }
  }
#pragma unroll
  for (int j = 0; j < N; ++j) ofWarps[warp][lane * N + j] = sum[j];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < warpLanes * N; i += threads) {
    if (tile + i >= columns) continue;
    float total = 0;
#pragma unroll
    for (int w = 0; w < warps; ++w) total += ofWarps[w][i];
    parts[blockIdx.y * columns + tile + i] = total;
  }
}

}  // namespace

void biasGradient(const ConstTensorView& gradOutput, const TensorView& target, bool accumulate, int slot,
                  Context& context) {
  const std::int64_t columns = target.shape.count(), rows = gradOutput.shape.rows();
  if (columns == 0) return;
  withStorage(gradOutput.type, "LinearBackwardWeight", [&](auto element) {
    using T = decltype(element);
    constexpr int n = vectorElements<T>;
    withVector<n>(rowsTakeVectors<n>(columns, gradOutput), [&](auto vector) {
      const std::int64_t tiles = ceilDivide(columns, warpLanes * vector());
      const std::int64_t wanted = ceilDivide(blocksPerMultiprocessor * context.device->multiprocessors, tiles);
      const std::int64_t runs = std::min(wanted, ceilDivide(rows, shortestRun));
      float* parts = context.scratch.get<float>(slot, runs * columns);
      if (runs > 0) {
        const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(runs));
        check(launch<biasGradientKernel<T, vector()>>({grid, dim3(threads), 0, context.stream}, elements<T>(gradOutput),
                                                      rows, columns, ceilDivide(rows, runs), parts),
              "LinearBackwardWeight");
      }
      addColumnSums(parts, runs, columns, columns, elements<float>(target), accumulate, context.stream);
    });
  });
}

}  // namespace tandem::kernels::cuda
