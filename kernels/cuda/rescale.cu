// Norms of the rows of a matrix and of what it is changed to, and the columns stretched by them.
//
// Memory bounds all three. A block norms a row. Stretching takes a tile of columns over a run of rows, as the gradient
// of a bias does (bias_gradient.cu): 32 lanes along the columns, 16 bytes each, and 8 warps that take rows by turns; so
// a thread reads the numbers of its columns once, and backward leaves its sums for column_sums.h.
#include <algorithm>

#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/operators.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/storage.h"
#include "kernels/row_stretch.h"

namespace tandem::kernels::cuda {

namespace {

constexpr int warps = 8;
constexpr int threads = warps * warpLanes;
constexpr std::int64_t blocksPerMultiprocessor = 4;
constexpr std::int64_t shortestRun = 32;  // rows: less is not worth a block

// --- norms -----------------------------------------------------------------------------------------------------------

template <class T, int N>
__global__ void __launch_bounds__(threads) rowNormsKernel(const T* matrix, const T* change, std::int64_t width,
                                                          float factor, float* norms, float* changedNorms) {
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * width;
  float squares[2] = {0, 0};
  for (std::int64_t column = threadIdx.x * N; column < width; column += threads * N) {
    float value[N], delta[N];
    load(matrix + begin + column, value);
    load(change + begin + column, delta);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float changed = fmaf(factor, delta[i], value[i]);
      squares[0] = fmaf(value[i], value[i], squares[0]);
      squares[1] = fmaf(changed, changed, squares[1]);
    }
  }
  blockSums<threads>(squares);
  if (threadIdx.x != 0) return;
  norms[blockIdx.x] = sqrtf(squares[0]);
  changedNorms[blockIdx.x] = sqrtf(squares[1]);
}

// --- stretching ------------------------------------------------------------------------------------------------------

template <class T>
struct Columns {
  const T* gain;
  const float *norms, *changedNorms;
  std::int64_t rows, width;
  std::int64_t runRows;  // run r = blockIdx.y covers rows [r, r + 1) * runRows
};

template <int N, class T>
__device__ __forceinline__ void readStretch(const Columns<T>& columns, std::int64_t column, float (&stretch)[N]) {
  float gain[N], norm[N], changed[N];
  load(columns.gain + column, gain);
  load(columns.norms + column, norm);
  load(columns.changedNorms + column, changed);
#pragma unroll
  for (int i = 0; i < N; ++i) stretch[i] = rowStretch(norm[i], gain[i], changed[i]);
}

template <class T, int N>
__global__ void __launch_bounds__(threads) rescaleKernel(Columns<T> columns, const T* input, const T* bias, T* output) {
  const int lane = static_cast<int>(threadIdx.x) % warpLanes, warp = static_cast<int>(threadIdx.x) / warpLanes;
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x) * warpLanes + lane) * N;
  const std::int64_t first = blockIdx.y * columns.runRows, last = min(columns.rows, first + columns.runRows);
  if (column >= columns.width) return;
  float stretch[N], shift[N] = {};
  readStretch(columns, column, stretch);
  if (bias != nullptr) load(bias + column, shift);
#pragma unroll 4
  for (std::int64_t row = first + warp; row < last; row += warps) {
    float values[N];
    load(input + row * columns.width + column, values);
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = fmaf(stretch[i], values[i], shift[i]);
    store(output + row * columns.width + column, values);
  }
}

// Writes the sums of its rows, over changedNorms, to parts + r * width.
template <class T, int N>
__global__ void __launch_bounds__(threads)
    rescaleBackwardKernel(Columns<T> columns, const T* gradOutput, const T* input, T* gradInput, float* parts) {
  SHARED_ARRAY(float, ofWarps, [warps][warpLanes * N]);
  const int lane = static_cast<int>(threadIdx.x) % warpLanes, warp = static_cast<int>(threadIdx.x) / warpLanes;
  const std::int64_t tile = static_cast<std::int64_t>(blockIdx.x) * warpLanes * N, column = tile + lane * N;
  const std::int64_t first = blockIdx.y * columns.runRows, last = min(columns.rows, first + columns.runRows);
  float sum[N] = {};
  if (column < columns.width) {
    float stretch[N];
    readStretch(columns, column, stretch);
#pragma unroll 2
    for (std::int64_t row = first + warp; row < last; row += warps) {
      float gradient[N], values[N];
      load(gradOutput + row * columns.width + column, gradient);
      load(input + row * columns.width + column, values);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        sum[i] = fmaf(gradient[i], values[i], sum[i]);
        gradient[i] *= stretch[i];
      }
      store(gradInput + row * columns.width + column, gradient);
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) ofWarps[warp][lane * N + i] = sum[i];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < warpLanes * N; i += threads) {
    if (tile + i >= columns.width) continue;
    float total = 0;
#pragma unroll
    for (int w = 0; w < warps; ++w) total += ofWarps[w][i];
    parts[blockIdx.y * columns.width + tile + i] = total * rowReciprocal(columns.changedNorms[tile + i]);
  }
}

// What a launch over tiles of `vector` columns a lane looks like: its runs are as many as fill the device.
template <class T, class Operator>
Columns<T> columnsOf(const Operator& call) {
  return {elements<T>(call.gain),  elements<float>(call.norms), elements<float>(call.changedNorms),
          call.input.shape.rows(), call.gain.shape.count(),     0};
}

template <class T>
dim3 chooseRuns(Columns<T>& columns, int vector, const Context& context) {
  const std::int64_t tiles = ceilDivide(columns.width, warpLanes * vector);
  const std::int64_t wanted = ceilDivide(blocksPerMultiprocessor * context.device->multiprocessors, tiles);
  const std::int64_t runs = std::min(wanted, ceilDivide(columns.rows, shortestRun));
  columns.runRows = runs > 0 ? ceilDivide(columns.rows, runs) : 0;
  return {static_cast<unsigned>(tiles), static_cast<unsigned>(runs)};
}

}  // namespace

void run(const RowNorms& call, Context& context) {
  const std::int64_t rows = call.matrix.shape[0], width = call.matrix.shape[1];
  if (rows == 0) return;
  withStorage(call.matrix.type, "RowNorms", [&](auto element) {
    using T = decltype(element);
    constexpr int n = vectorElements<T>;
    withVector<n>(rowsTakeVectors<n>(width, call.matrix, call.change), [&](auto vector) {
      check(launch<rowNormsKernel<T, vector()>>({dim3(static_cast<unsigned>(rows)), dim3(threads), 0, context.stream},
                                                elements<T>(call.matrix), elements<T>(call.change), width, call.factor,
                                                elements<float>(call.norms), elements<float>(call.changedNorms)),
            "RowNorms");
    });
  });
}

void run(const Rescale& call, Context& context) {
  if (call.output.shape.count() == 0) return;
  withStorage(call.input.type, "Rescale", [&](auto element) {
    using T = decltype(element);
    constexpr int n = vectorElements<T>;
    const bool aligned = rowsTakeVectors<n>(call.gain.shape.count(), call.input, call.gain, call.norms,
                                            call.changedNorms, call.bias, call.output);
    withVector<n>(aligned, [&](auto vector) {
      Columns<T> columns = columnsOf<T>(call);
      const dim3 grid = chooseRuns(columns, vector(), context);
      check(
          launch<rescaleKernel<T, vector()>>({grid, dim3(threads), 0, context.stream}, columns, elements<T>(call.input),
                                             elements<T>(call.bias), elements<T>(call.output)),
          "Rescale");
    });
  });
}

void run(const RescaleBackward& call, Context& context) {
  const std::int64_t width = call.gain.shape.count();
  if (width == 0) return;
  withStorage(call.input.type, "RescaleBackward", [&](auto element) {
    using T = decltype(element);
    constexpr int n = vectorElements<T>;
    const bool aligned = rowsTakeVectors<n>(width, call.gradOutput, call.input, call.gain, call.norms,
                                            call.changedNorms, call.gradInput);
    withVector<n>(aligned, [&](auto vector) {
      Columns<T> columns = columnsOf<T>(call);
      const dim3 grid = chooseRuns(columns, vector(), context);
      float* parts = context.scratch.get<float>(0, grid.y * width);
      if (grid.y > 0) {
        check(launch<rescaleBackwardKernel<T, vector()>>({grid, dim3(threads), 0, context.stream}, columns,
                                                         elements<T>(call.gradOutput), elements<T>(call.input),
                                                         elements<T>(call.gradInput), parts),
              "RescaleBackward");
      }
      addColumnSums(parts, grid.y, width, width, elements<float>(call.gradGain), call.accumulate, context.stream);
    });
  });
}

}  // namespace tandem::kernels::cuda
