// Rows of a table picked by token, and the gradients of the tables.
//
// Forward is a copy: a warp takes a row. Backward adds up the gradients of equal tokens, in the order of their rows and
// without atomics: rows are sorted by token (sort_rows.h), and the sorted list is cut into chunks of one length, so
// that a token which fills half of a text does not keep one block busy while the others wait. A block adds up the runs
// of equal tokens of its chunk for some of the columns. The run that a chunk begins with may be the rest of one that
// began in an earlier chunk: its sum goes into scratch memory, and the block of the chunk where the run began, in a
// second kernel, adds those up. The work is in proportion to the rows; the vocabulary only costs its zeros.
#include <algorithm>

#include "kernels/cuda/operators.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/sort_rows.h"
#include "kernels/cuda/storage.h"

namespace tandem::kernels::cuda {

namespace {

constexpr int gatherThreads = 128;
constexpr int gatherRows = gatherThreads / warpLanes;

template <class T>
struct EmbeddingOperands {
  const std::int32_t *tokens, *positions;
  const T* __restrict__ weight;
  const T* __restrict__ positionWeight;
  T* __restrict__ output;
  std::int64_t rows, width;
  TablePart part;
  std::int64_t vocabulary, positionCount;  // rows of the tables
};

// Of a part of the tables: a warp a row, as below; what is outside of the part is zeros.
template <class T, int N>
__global__ void __launch_bounds__(gatherThreads) embeddingPartKernel(EmbeddingOperands<T> op) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * gatherRows + threadIdx.x / warpLanes;
  if (row >= op.rows) return;
  const std::int64_t token = op.tokens[row] - op.part.firstToken;
  const std::int64_t position = op.positionWeight != nullptr ? op.positions[row] - op.part.firstPosition : -1;
  T* __restrict__ to = op.output + row * op.width;
  for (std::int64_t column = (threadIdx.x % warpLanes) * N; column < op.width; column += warpLanes * N) {
    float sum[N] = {};
    float value[N];
    if (token >= 0 && token < op.vocabulary) load(op.weight + token * op.width + column, sum);
    if (position >= 0 && position < op.positionCount) {
      load(op.positionWeight + position * op.width + column, value);
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] += value[i];
    }
    store(to + column, sum);
  }
}

template <class T, int N, bool positioned>
__global__ void __launch_bounds__(gatherThreads) embeddingKernel(EmbeddingOperands<T> op) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * gatherRows + threadIdx.x / warpLanes;
  if (row >= op.rows) return;
  const T* __restrict__ from = op.weight + op.tokens[row] * op.width;
  const T* __restrict__ position = positioned ? op.positionWeight + op.positions[row] * op.width : nullptr;
  T* __restrict__ to = op.output + row * op.width;
#pragma unroll 4
  for (std::int64_t column = (threadIdx.x % warpLanes) * N; column < op.width; column += warpLanes * N) {
    if constexpr (positioned) {
      float a[N], b[N];
      load(from + column, a);
      load(position + column, b);
#pragma unroll
      for (int i = 0; i < N; ++i) a[i] += b[i];
      store(to + column, a);
    } else {
      Packed<N, T> copied;
      copied.load(from + column);
      copied.store(to + column);
    }
  }
}

// --- backward --------------------------------------------------------------------------------------------------------

constexpr int chunkLength = 32;     // sorted rows of a block
constexpr int columnThreads = 128;  // at most
constexpr int inFlight = 4;         // rows that a thread has read before it adds them

template <class T>
struct ScatterOperands {
  const int2* __restrict__ sorted;  // (token, row)
  const T* __restrict__ gradOutput;
  float* __restrict__ table;
  float* __restrict__ rests;  // [chunks][width]: sums of the runs that chunks begin with, if those began before
  std::int64_t rows, width;
  bool accumulate;
  int tableRows;  // a key of that many stands for what is outside of the table: it comes last, and is left out
};

template <int N>
__device__ __forceinline__ void addTo(float* target, const float (&sum)[N], bool accumulate) {
  float value[N];
  if (accumulate) {
    load(target, value);
#pragma unroll
    for (int i = 0; i < N; ++i) value[i] += sum[i];
    store(target, value);
  } else {
    store(target, sum);
  }
}

// Block (chunk, part of the columns).
template <class T, int N>
__global__ void __launch_bounds__(columnThreads) sumRunsKernel(ScatterOperands<T> op) {
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * N;
  if (column >= op.width) return;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * chunkLength;
  const int count = static_cast<int>(min(static_cast<std::int64_t>(chunkLength), op.rows - begin));
  const int2* sorted = op.sorted + begin;

  int token = sorted[0].x;
  bool isRest = begin > 0 && sorted[-1].x == token;
  float sum[N] = {};
  const auto finishRun = [&] {
    if (token >= op.tableRows) return;
    if (isRest) {
      store(op.rests + blockIdx.x * op.width + column, sum);
    } else {
      addTo(op.table + token * op.width + column, sum, op.accumulate);
    }
  };
  for (int first = 0; first < count; first += inFlight) {
    int tokens[inFlight];
    Packed<N, T> gradients[inFlight];
#pragma unroll
    for (int j = 0; j < inFlight; ++j) {
      if (first + j >= count) break;
      const int2 pair = sorted[first + j];
      tokens[j] = pair.x;
      gradients[j].load(op.gradOutput + pair.y * op.width + column);
    }
#pragma unroll
    for (int j = 0; j < inFlight; ++j) {
      if (first + j >= count) break;
      if (tokens[j] != token) {
        finishRun();
        token = tokens[j];
        isRest = false;
#pragma unroll
        for (int i = 0; i < N; ++i) sum[i] = 0;
      }
      float gradient[N];
      gradients[j].unpack(gradient);
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] += gradient[i];
    }
  }
  finishRun();
}

// The block of a chunk in which a run began that goes on adds up its rests, chunk by chunk.
template <int N>
__global__ void __launch_bounds__(columnThreads)
    addRestsKernel(const int2* __restrict__ sorted, const float* __restrict__ rests, float* __restrict__ table,
                   std::int64_t rows, std::int64_t width, int tableRows) {
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * N;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * chunkLength;
  std::int64_t next = begin + chunkLength;  // where the next chunk begins
  if (column >= width || next >= rows) return;
  const int token = sorted[next - 1].x;
  if (sorted[next].x != token || token >= tableRows) return;                          // nothing goes on
  if (begin > 0 && sorted[begin].x == token && sorted[begin - 1].x == token) return;  // it began before
  float sum[N];
  load(table + token * width + column, sum);
#pragma unroll 4
  for (; next < rows && sorted[next].x == token; next += chunkLength) {
    float rest[N];
    load(rests + next / chunkLength * width + column, rest);
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] += rest[i];
  }
  store(table + token * width + column, sum);
}

// table[keys[r] - first] (+)= rows[r], for the keys of the table.
void scatter(const ConstTensorView& keys, std::int64_t first, bool isPart, const ConstTensorView& rows,
             const TensorView& table, bool accumulate, Context& context) {
  if (!accumulate) {
    check(cudaMemsetAsync(table.data, 0, static_cast<std::size_t>(table.shape.count()) * sizeof(float), context.stream),
          "EmbeddingBackward");
  }
  const std::int64_t count = keys.shape.count(), width = table.shape[1];
  if (count == 0 || width == 0) return;
  const int2* sorted = sortRows({elements<std::int32_t>(keys), count, first, table.shape[0], isPart}, context);
  const std::int64_t chunks = ceilDivide(count, chunkLength);
  auto* rests = context.scratch.get<float>(1, chunks * width);
  withStorage(rows.type, "EmbeddingBackward", [&](auto element) {
    using T = decltype(element);
    constexpr int n = vectorElements<T>;
    withVector<n>(rowsTakeVectors<n>(width, rows, table), [&](auto vector) {
      const std::int64_t vectors = width / vector();
      const std::int64_t threads = std::min<std::int64_t>(columnThreads, ceilDivide(vectors, warpLanes) * warpLanes);
      const Grid grid(dim3(static_cast<unsigned>(chunks), static_cast<unsigned>(ceilDivide(vectors, threads))),
                      dim3(static_cast<unsigned>(threads)), 0, context.stream);
      const ScatterOperands<T> op{sorted, elements<T>(rows), elements<float>(table),          rests, count,
                                  width,  accumulate,        static_cast<int>(table.shape[0])};
      check(launch<sumRunsKernel<T, vector()>>(grid, op), "EmbeddingBackward");
      check(launch<addRestsKernel<vector()>>(grid, sorted, static_cast<const float*>(rests), op.table, count, width,
                                             op.tableRows),
            "EmbeddingBackward");
    });
  });
}

}  // namespace

void run(const Embedding& call, Context& context) {
  const std::int64_t rows = call.tokens.shape.count(), width = call.weight.shape[1];
  if (rows == 0 || width == 0) return;
  withStorage(call.weight.type, "Embedding", [&](auto element) {
    using T = decltype(element);
    constexpr int n = vectorElements<T>;
    const EmbeddingOperands<T> op{elements<std::int32_t>(call.tokens),
                                  elements<std::int32_t>(call.positions),
                                  elements<T>(call.weight),
                                  elements<T>(call.positionWeight),
                                  elements<T>(call.output),
                                  rows,
                                  width,
                                  call.part,
                                  call.weight.shape[0],
                                  call.positionWeight ? call.positionWeight.shape[0] : 0};
    withVector<n>(rowsTakeVectors<n>(width, call.weight, call.positionWeight, call.output), [&](auto vector) {
      const Grid grid(dim3(static_cast<unsigned>(ceilDivide(rows, gatherRows))), dim3(gatherThreads), 0,
                      context.stream);
      check(call.part.isPart      ? launch<embeddingPartKernel<T, vector()>>(grid, op)
            : call.positionWeight ? launch<embeddingKernel<T, vector(), true>>(grid, op)
                                  : launch<embeddingKernel<T, vector(), false>>(grid, op),
            "Embedding");
    });
  });
}

void run(const EmbeddingBackward& call, Context& context) {
  scatter(call.tokens, call.part.firstToken, call.part.isPart, call.gradOutput, call.gradWeight, call.accumulateWeight,
          context);
  if (!call.gradPositionWeight) return;
  scatter(call.positions, call.part.firstPosition, call.part.isPart, call.gradOutput, call.gradPositionWeight,
          call.accumulatePositionWeight, context);
}

}  // namespace tandem::kernels::cuda
