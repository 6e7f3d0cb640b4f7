// LayerNorm and RMSNorm with the residual addition fused in; backward with the residual's gradient fused in.
//
// Memory bounds both, so a row is read once and lies in registers, in its storage type, from its reading until its
// results are written. Narrow rows take a warp each: no barriers, and many rows in flight hide the latency. Wider ones
// take a block. Rows that fit in no registers, or whose address or width no vector divides, are read again for each
// pass, from the caches.
//
// Backward also sums over rows, for the weight and the bias. Its blocks are therefore few and stay: each takes rows in
// turn, a thread keeps the sums of its columns in registers, and what blocks have at their end goes into scratch memory
// for column_sums.h. While a block reduces a row, the next one is on its way.
#include <algorithm>

#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/operators.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/storage.h"

namespace tandem::kernels::cuda {

namespace {

// How rows lie over threads: `threads` share a row; each keeps `kept` vectors of N elements, vector k of thread t
// beginning at column (k * threads + t) * N. With kept = 0 the row is read anew in each pass. A block has `block`
// threads.
template <int N_, int threads_, int kept_, int block_>
struct RowLayout {
  static constexpr int N = N_, threads = threads_, kept = kept_, block = block_;
  static constexpr int room = N * threads * kept;  // columns
  static constexpr int rows = block / threads;     // that a block works on at once

  __device__ static int thread() { return static_cast<int>(threadIdx.x) % threads; }
  __device__ static std::int64_t firstRow() {
    return static_cast<std::int64_t>(blockIdx.x) * rows + static_cast<int>(threadIdx.x) / threads;
  }
  __device__ static int column(int k) { return (k * threads + thread()) * N; }
};
struct Reread {
  static constexpr int threads = 256, kept = 0, block = 256, rows = 1;
};

// Calls body with the first layout that has room for rows of `width`, or with the one that needs none.
template <class First, class... Others, class Body>
void withLayout(bool vectors, std::int64_t width, Body&& body) {
  if (vectors && width <= First::room) {
    body(First{});
  } else if constexpr (sizeof...(Others) > 0) {
    withLayout<Others...>(vectors, width, body);
  } else {
    body(Reread{});
  }
}

// --- forward ---------------------------------------------------------------------------------------------------------

template <class T>
struct NormOperands {
  const T *input, *residual, *weight, *bias;
  T *sum, *output;
  float *mean, *reciprocal;
  float epsilon;
  std::int64_t rows, width;
};

// The elements at `at` of input + residual, which are stored and rounded like what was stored.
template <int N, class T>
__device__ __forceinline__ void readSum(const NormOperands<T>& op, std::int64_t at, float (&x)[N]) {
  load(op.input + at, x);
  if (op.residual == nullptr) return;
  float residual[N];
  load(op.residual + at, residual);
  Packed<N, T> sum;
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] += residual[i];
  sum.pack(x);
  sum.store(op.sum + at);
  sum.unpack(x);
}

template <int N, class T>
__device__ __forceinline__ void writeNormal(const NormOperands<T>& op, std::int64_t begin, std::int64_t column,
                                            const float (&x)[N], float mean, float reciprocal) {
  float weight[N], y[N];
  load(op.weight + column, weight);
#pragma unroll
  for (int i = 0; i < N; ++i) y[i] = (x[i] - mean) * reciprocal * weight[i];
  if (op.bias != nullptr) {
    float bias[N];
    load(op.bias + column, bias);
#pragma unroll
    for (int i = 0; i < N; ++i) y[i] += bias[i];
  }
  store(op.output + begin + column, y);
}

template <class T>
__device__ __forceinline__ void writeStatistics(const NormOperands<T>& op, std::int64_t row, float mean,
                                                float reciprocal) {
  if (op.mean != nullptr) op.mean[row] = mean;
  if (op.reciprocal != nullptr) op.reciprocal[row] = reciprocal;
}

// The variance is summed from deviations, a second pass over registers, since the mean may be large beside them.
template <class T, class Layout, bool layer>
__global__ void __launch_bounds__(Layout::block) normKernel(NormOperands<T> op) {
  constexpr int N = Layout::N, threads = Layout::threads, kept = Layout::kept;
  const std::int64_t row = Layout::firstRow();
  if (row >= op.rows) return;  // a whole warp, or nobody
  const std::int64_t begin = row * op.width;
  const float count = static_cast<float>(op.width);

  float x[kept][N], mean = 0, squares = 0;
#pragma unroll
  for (int k = 0; k < kept; ++k) {
    if (Layout::column(k) < op.width) readSum(op, begin + Layout::column(k), x[k]);
  }
  if constexpr (layer) {
#pragma unroll
    for (int k = 0; k < kept; ++k) {
      if (Layout::column(k) >= op.width) continue;
#pragma unroll
      for (int i = 0; i < N; ++i) mean += x[k][i];
    }
    mean = blockSum<threads>(mean) / count;
  }
#pragma unroll
  for (int k = 0; k < kept; ++k) {
    if (Layout::column(k) >= op.width) continue;
#pragma unroll
    for (int i = 0; i < N; ++i) squares = fmaf(x[k][i] - mean, x[k][i] - mean, squares);
  }
  const float reciprocal = rsqrtf(blockSum<threads>(squares) / count + op.epsilon);
#pragma unroll
  for (int k = 0; k < kept; ++k) {
    if (Layout::column(k) < op.width) writeNormal(op, begin, Layout::column(k), x[k], mean, reciprocal);
  }
  if (Layout::thread() == 0) writeStatistics(op, row, mean, reciprocal);
}

// The same without room for the row. Each thread reads again only what it wrote itself.
template <class T, bool layer>
__global__ void __launch_bounds__(Reread::block) normRereadKernel(NormOperands<T> op) {
  constexpr int threads = Reread::threads;
  const std::int64_t row = blockIdx.x, begin = row * op.width;
  const float count = static_cast<float>(op.width);
  const T* again = op.residual == nullptr ? op.input : op.sum;

  float x[1], mean = 0, squares = 0;
  for (std::int64_t column = threadIdx.x; column < op.width; column += threads) {
    readSum(op, begin + column, x);
    if constexpr (layer) {
      mean += x[0];
    } else {
      squares = fmaf(x[0], x[0], squares);
    }
  }
  if constexpr (layer) {
    mean = blockSum<threads>(mean) / count;
    for (std::int64_t column = threadIdx.x; column < op.width; column += threads) {
      const float deviation = toFloat(again[begin + column]) - mean;
      squares = fmaf(deviation, deviation, squares);
    }
  }
  const float reciprocal = rsqrtf(blockSum<threads>(squares) / count + op.epsilon);
  for (std::int64_t column = threadIdx.x; column < op.width; column += threads) {
    load(again + begin + column, x);
    writeNormal(op, begin, column, x, mean, reciprocal);
  }
  if (threadIdx.x == 0) writeStatistics(op, row, mean, reciprocal);
}

template <class T, bool layer>
void runNorm(const NormOperands<T>& op, bool vectors, cudaStream_t stream) {
  constexpr int n = vectorElements<T>;
  withLayout<RowLayout<n, 32, 4, 128>, RowLayout<n, 32, 8, 128>, RowLayout<n, 256, 2, 256>, RowLayout<n, 512, 2, 512>>(
      vectors, op.width, [&](auto layout) {
        using Layout = decltype(layout);
        const Grid grid(dim3(static_cast<unsigned>(ceilDivide(op.rows, Layout::rows))), dim3(Layout::block), 0, stream);
        if constexpr (Layout::kept > 0) {
          check(launch<normKernel<T, Layout, layer>>(grid, op), "Norm");
        } else {
          check(launch<normRereadKernel<T, layer>>(grid, op), "Norm");
        }
      });
}

// --- backward --------------------------------------------------------------------------------------------------------

template <class T>
struct NormBackwardOperands {
  const T *gradOutput, *gradSum, *input, *weight;
  const float *mean, *reciprocal;
  T* gradInput;
  float* parts;  // [blocks][2][width]: what each block sums for the weight and the bias
  std::int64_t rows, width;
  bool bias;
};

// Blocks that fit on a multiprocessor: registers hold two operands of a row, of the next one where rows take a block,
// and the sums of the columns.
template <class Layout, bool layer>
constexpr int residentBlocks() {
  if (Layout::rows > 1) return layer ? 3 : 4;
  return Layout::kept < 2 ? 3 : 512 / Layout::block;
}

// One row as its threads keep it.
template <class T, class Layout>
struct KeptRow {
  Packed<Layout::N, T> gradOutput[Layout::kept], input[Layout::kept];
  float mean, reciprocal;

  __device__ __forceinline__ void read(const NormBackwardOperands<T>& op, std::int64_t row, bool layer) {
    mean = layer ? op.mean[row] : 0.0f;
    reciprocal = op.reciprocal[row];
#pragma unroll
    for (int k = 0; k < Layout::kept; ++k) {
      if (Layout::column(k) >= op.width) continue;
      gradOutput[k].load(op.gradOutput + row * op.width + Layout::column(k));
      input[k].load(op.input + row * op.width + Layout::column(k));
    }
  }
};

// With n = (x - mean) r and g = dy w: dx = r (g - average(g) - n average(g n)), without average(g) for rms.
struct RowAverages {
  float product, gradient;
};

template <int N, class T>
__device__ __forceinline__ void writeGradient(const NormBackwardOperands<T>& op, std::int64_t at,
                                              const float (&gradient)[N], const float (&normal)[N], float reciprocal,
                                              const RowAverages& average) {
  float result[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    result[i] = reciprocal * fmaf(-normal[i], average.product, gradient[i] - average.gradient);
  }
  if (op.gradSum != nullptr) {
    float passing[N];
    load(op.gradSum + at, passing);
#pragma unroll
    for (int i = 0; i < N; ++i) result[i] += passing[i];
  }
  store(op.gradInput + at, result);
}

// The sums of all threads that own a column go to `target`: those of a block's only row right away, those of its warps
// added up in their order.
template <class Layout>
__device__ __forceinline__ void writeColumns(const float (&sums)[Layout::kept][Layout::N], std::int64_t width,
                                             float* target) {
  constexpr int N = Layout::N;
  if constexpr (Layout::rows == 1) {
#pragma unroll
    for (int k = 0; k < Layout::kept; ++k) {
      if (Layout::column(k) < width) store(target + Layout::column(k), sums[k]);
    }
  } else {
    SHARED_ARRAY(float, total, [Layout::room]);
    const int own = static_cast<int>(threadIdx.x) / Layout::threads;
    for (int turn = 0; turn < Layout::rows; ++turn) {
      __syncthreads();
      if (turn != own) continue;
#pragma unroll
      for (int k = 0; k < Layout::kept; ++k) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
          float& sum = total[Layout::column(k) + i];
          sum = turn == 0 ? sums[k][i] : sum + sums[k][i];
        }
      }
    }
    __syncthreads();
    for (int column = static_cast<int>(threadIdx.x); column < width; column += Layout::block) {
      target[column] = total[column];
    }
    __syncthreads();
  }
}

template <class T, class Layout, bool layer>
__global__ void __launch_bounds__(Layout::block, residentBlocks<Layout, layer>())
    normBackwardKernel(NormBackwardOperands<T> op) {
  constexpr int N = Layout::N, kept = Layout::kept;
  constexpr bool ahead = Layout::rows == 1;  // else other warps hide a warp's latency already
  const std::int64_t rowsAtOnce = static_cast<std::int64_t>(gridDim.x) * Layout::rows;
  const float count = static_cast<float>(op.width);
  float gradWeight[kept][N] = {}, gradBias[kept][N] = {};

  std::int64_t row = Layout::firstRow();
  KeptRow<T, Layout> current, next;
  if (ahead && row < op.rows) next.read(op, row, layer);
  for (; row < op.rows; row += rowsAtOnce) {  // as often for all threads of a row
    if constexpr (ahead) {
      current = next;
      if (row + rowsAtOnce < op.rows) next.read(op, row + rowsAtOnce, layer);
    } else {
      current.read(op, row, layer);
    }
    float gradient[N], normal[N], weight[N];
    const auto readVector = [&](int k) {
      current.gradOutput[k].unpack(gradient);
      current.input[k].unpack(normal);
      load(op.weight + Layout::column(k), weight);
#pragma unroll
      for (int i = 0; i < N; ++i) normal[i] = (normal[i] - current.mean) * current.reciprocal;
    };

    float sums[2] = {0, 0};  // of g n, and of g
#pragma unroll
    for (int k = 0; k < kept; ++k) {
      if (Layout::column(k) >= op.width) continue;
      readVector(k);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        gradWeight[k][i] = fmaf(gradient[i], normal[i], gradWeight[k][i]);
        if constexpr (layer) gradBias[k][i] += gradient[i];
        sums[0] = fmaf(gradient[i] * weight[i], normal[i], sums[0]);
        if constexpr (layer) sums[1] = fmaf(gradient[i], weight[i], sums[1]);
      }
    }
    blockSums<Layout::threads>(sums);
#pragma unroll
    for (int k = 0; k < kept; ++k) {
      if (Layout::column(k) >= op.width) continue;
      readVector(k);
#pragma unroll
      for (int i = 0; i < N; ++i) gradient[i] *= weight[i];
      writeGradient(op, row * op.width + Layout::column(k), gradient, normal, current.reciprocal,
                    {sums[0] / count, sums[1] / count});
    }
  }
  float* parts = op.parts + static_cast<std::int64_t>(blockIdx.x) * 2 * op.width;
  writeColumns<Layout>(gradWeight, op.width, parts);
  if constexpr (layer) {
    if (op.bias) writeColumns<Layout>(gradBias, op.width, parts + op.width);
  }
}

// The same without room for the row: the sums over rows lie in scratch memory all along.
template <class T, bool layer>
__global__ void __launch_bounds__(Reread::block) normBackwardRereadKernel(NormBackwardOperands<T> op) {
  const float count = static_cast<float>(op.width);
  float* gradWeight = op.parts + static_cast<std::int64_t>(blockIdx.x) * 2 * op.width;
  float* gradBias = gradWeight + op.width;
  for (std::int64_t row = blockIdx.x; row < op.rows; row += gridDim.x) {
    const bool isFirst = row == blockIdx.x;
    const std::int64_t begin = row * op.width;
    const float mean = layer ? op.mean[row] : 0.0f, reciprocal = op.reciprocal[row];
    float sums[2] = {0, 0};
    for (std::int64_t column = threadIdx.x; column < op.width; column += Reread::threads) {
      const float gradOutput = toFloat(op.gradOutput[begin + column]);
      const float normal = (toFloat(op.input[begin + column]) - mean) * reciprocal;
      const float gradient = gradOutput * toFloat(op.weight[column]);
      sums[0] = fmaf(gradient, normal, sums[0]);
      if constexpr (layer) sums[1] += gradient;
      gradWeight[column] = fmaf(gradOutput, normal, isFirst ? 0.0f : gradWeight[column]);
      if (op.bias) gradBias[column] = gradOutput + (isFirst ? 0.0f : gradBias[column]);
    }
    blockSums<Reread::threads>(sums);
    for (std::int64_t column = threadIdx.x; column < op.width; column += Reread::threads) {
      const float normal[1] = {(toFloat(op.input[begin + column]) - mean) * reciprocal};
      const float gradient[1] = {toFloat(op.gradOutput[begin + column]) * toFloat(op.weight[column])};
      writeGradient(op, begin + column, gradient, normal, reciprocal, {sums[0] / count, sums[1] / count});
    }
  }
}

// Returns how many blocks there were, each of which left its sums.
template <class T, bool layer>
std::int64_t runNormBackward(NormBackwardOperands<T> op, bool kept, Context& context) {
  constexpr int n = vectorElements<T>;
  std::int64_t blocks = 0;
  withLayout<RowLayout<n, 32, 4, 128>, RowLayout<n, 256, 1, 256>, RowLayout<n, 256, 2, 256>, RowLayout<n, 512, 2, 512>>(
      kept, op.width, [&](auto layout) {
        using Layout = decltype(layout);
        // Two turns a block at least, so that few rows do not leave many sums.
        blocks =
            std::min<std::int64_t>(ceilDivide(op.rows, 2 * Layout::rows),
                                   std::int64_t{residentBlocks<Layout, layer>()} * context.device->multiprocessors);
        op.parts = context.scratch.get<float>(0, blocks * 2 * op.width);
        const Grid grid(dim3(static_cast<unsigned>(blocks)), dim3(Layout::block), 0, context.stream);
        if constexpr (Layout::kept > 0) {
          check(launch<normBackwardKernel<T, Layout, layer>>(grid, op), "NormBackward");
        } else {
          check(launch<normBackwardRereadKernel<T, layer>>(grid, op), "NormBackward");
        }
      });
  return blocks;
}

}  // namespace

void run(const Norm& call, Context& context) {
  const std::int64_t rows = call.output.shape.rows(), width = call.output.shape.last();
  if (rows == 0 || width == 0) return;
  withStorage(call.input.type, "Norm", [&](auto element) {
    using T = decltype(element);
    const NormOperands<T> op{elements<T>(call.input),
                             elements<T>(call.residual),
                             elements<T>(call.weight),
                             elements<T>(call.bias),
                             elements<T>(call.sum),
                             elements<T>(call.output),
                             elements<float>(call.mean),
                             elements<float>(call.reciprocal),
                             call.epsilon,
                             rows,
                             width};
    const bool vectors = rowsTakeVectors<vectorElements<T>>(width, call.input, call.residual, call.weight, call.bias,
                                                            call.sum, call.output);
    if (call.kind == NormKind::layer) {
      runNorm<T, true>(op, vectors, context.stream);
    } else {
      runNorm<T, false>(op, vectors, context.stream);
    }
  });
}

void run(const NormBackward& call, Context& context) {
  const std::int64_t rows = call.gradOutput.shape.rows(), width = call.gradOutput.shape.last();
  if (width == 0) return;
  std::int64_t blocks = 0;
  if (rows > 0) {
    withStorage(call.input.type, "NormBackward", [&](auto element) {
      using T = decltype(element);
      const NormBackwardOperands<T> op{elements<T>(call.gradOutput),
                                       elements<T>(call.gradSum),
                                       elements<T>(call.input),
                                       elements<T>(call.weight),
                                       elements<float>(call.mean),
                                       elements<float>(call.reciprocal),
                                       elements<T>(call.gradInput),
                                       nullptr,
                                       rows,
                                       width,
                                       static_cast<bool>(call.gradBias)};
      const bool vectors = rowsTakeVectors<vectorElements<T>>(width, call.gradOutput, call.gradSum, call.input,
                                                              call.weight, call.gradInput);
      // An RMS norm with a bias is too rare to keep registers for its gradient.
      const bool kept = vectors && (call.kind == NormKind::layer || !call.gradBias);
      blocks = call.kind == NormKind::layer ? runNormBackward<T, true>(op, kept, context)
                                            : runNormBackward<T, false>(op, kept, context);
    });
  }
  const float* parts = context.scratch.get<float>(0, blocks * 2 * width);  // what was filled just now
  addColumnSums(parts, blocks, 2 * width, width, elements<float>(call.gradWeight), call.accumulate, context.stream);
  if (!call.gradBias) return;
  addColumnSums(blocks > 0 ? parts + width : nullptr, blocks, 2 * width, width, elements<float>(call.gradBias),
                call.accumulate, context.stream);
}

}  // namespace tandem::kernels::cuda
