// Cross entropy of a projection: the products are cuBLASLt's, the softmax between them is a kernel of one block a row.
//
// The logits of a chunk of rows lie in scratch in float32, rows padded so that each begins at a multiple of 16 bytes.
// The kernel reads a row twice: once for its maximum and its sum of exponentials at the same time (Milakov &
// Gimelshein, Online normalizer calculation for softmax, 2018), once, from the end, where the cache still holds it, for
// the gradients. These have the type of the input, so that the products that follow run at the speed of that type; in
// float32 they take the place of the logits. Memory bounds the kernel. Chunks are long, since each reads and writes the
// gradient of the whole weight.
#include "kernels/cuda/linear_cross_entropy.h"

#include <algorithm>
#include <cfloat>

#include "kernels/cuda/matrix_product.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/storage.h"

namespace tandem::kernels::cuda {

namespace {

constexpr int logitsSlot = 1, gradientsSlot = 2;
constexpr std::int64_t logitsBytes = std::int64_t{512} << 20;  // of a chunk; beside it half of that in 16 bits
constexpr std::int64_t rowMultiple = 128;                      // of a tile of a product
constexpr std::int64_t longRow = 4096;                         // from here a row has a large block
constexpr int lanesWide = 8;                                   // elements that a thread takes at once

// The maximum so far, and the sum of exp(value - maximum).
struct Running {
  float largest = -FLT_MAX;  // not -infinity, which makes a NaN of a single logit that is -infinity
  float sum = 0;

  template <int N>
  __device__ __forceinline__ void take(const float (&values)[N]) {
    float top = largest;
#pragma unroll
    for (int i = 0; i < N; ++i) top = fmaxf(top, values[i]);
    if (top > largest) {
      sum *= __expf(largest - top);
      largest = top;
    }
#pragma unroll
    for (int i = 0; i < N; ++i) sum += __expf(values[i] - largest);  // of a NaN or +infinity a NaN
  }
};

// One row of logits as a block sees it.
struct Row {
  const float* logits;
  int vocabulary, target;
};

template <int threads>
__device__ __forceinline__ Running statisticsOf(const Row& row) {
  Running running;
  const int whole = row.vocabulary / lanesWide;
  for (int i = static_cast<int>(threadIdx.x); i < whole; i += threads) {
    float values[lanesWide];
    load(row.logits + static_cast<std::int64_t>(i) * lanesWide, values);
    running.take(values);
  }
  const int at = whole * lanesWide + static_cast<int>(threadIdx.x);
  if (at < row.vocabulary) {
    const float values[1] = {row.logits[at]};
    running.take(values);
  }
  const float largest = blockMax<threads>(running.largest);
  running.sum = blockSum<threads>(running.sum * __expf(running.largest - largest));
  running.largest = largest;
  return running;
}

// gradScale * (softmax - one at the target), from the last element to the first.
template <int threads, class T>
__device__ __forceinline__ void writeGradients(const Row& row, const Running& all, float gradScale, T* gradients) {
  const float factor = gradScale / all.sum;
  const int whole = row.vocabulary / lanesWide;
  const int tail = whole * lanesWide + static_cast<int>(threadIdx.x);
  if (tail < row.vocabulary) {
    const float gradient = __expf(row.logits[tail] - all.largest) * factor - (tail == row.target ? gradScale : 0.0f);
    gradients[tail] = fromFloat<T>(gradient);
  }
  for (int i = whole - 1 - static_cast<int>(threadIdx.x); i >= 0; i -= threads) {
    const std::int64_t at = static_cast<std::int64_t>(i) * lanesWide;
    float values[lanesWide];
    load(row.logits + at, values);
#pragma unroll
    for (int j = 0; j < lanesWide; ++j) {
      values[j] = __expf(values[j] - all.largest) * factor - (at + j == row.target ? gradScale : 0.0f);
    }
    store(gradients + at, values);
  }
}

template <int threads, class T>
__device__ __forceinline__ void writeZeros(int vocabulary, T* gradients) {
  for (int i = static_cast<int>(threadIdx.x); i < vocabulary; i += threads) gradients[i] = fromFloat<T>(0.0f);
}

// Rows of logits and gradients are `stride` elements apart. Without gradients `gradients` is null. For float32 both are
// the same memory: each thread writes only what it alone reads.
template <class T, int threads>
__global__ void __launch_bounds__(threads)
    crossEntropyKernel(const float* logits, std::int64_t stride, int vocabulary, const std::int32_t* targets,
                       const float* gradScale, float* losses, T* gradients) {
  const int target = targets[blockIdx.x];
  T* const to = gradients != nullptr ? gradients + blockIdx.x * stride : nullptr;
  if (target < 0) {
    if (threadIdx.x == 0) losses[blockIdx.x] = 0;
    if (to != nullptr) writeZeros<threads>(vocabulary, to);
    return;
  }
  const Row row{logits + blockIdx.x * stride, vocabulary, target};
  // Read before a barrier that comes before any write of gradients over it. A target that is no word has no loss.
  const float wanted = threadIdx.x == 0 && target < vocabulary ? row.logits[target] : NAN;
  const Running all = statisticsOf<threads>(row);
  if (threadIdx.x == 0) losses[blockIdx.x] = all.largest + logf(all.sum) - wanted;
  if (to != nullptr) writeGradients<threads>(row, all, *gradScale, to);
}

// A chunk of the rows of a call, and its scratch.
struct Chunk {
  std::int64_t first, rows, stride;
  float* logits;
  void* gradients;  // null without gradients
};

ConstTensorView rowsOf(const ConstTensorView& view, const Chunk& chunk) {
  const std::int64_t width = view.shape.last();
  return ConstTensorView(static_cast<const std::byte*>(view.data) + chunk.first * width * base::byteSize(view.type),
                         view.type, Shape{chunk.rows, width});
}

template <int threads>
void launchLosses(const LinearCrossEntropy& call, const Chunk& chunk, Context& context) {
  withStorage(call.input.type, "LinearCrossEntropy", [&](auto element) {
    using T = decltype(element);
    check(launch<crossEntropyKernel<T, threads>>(
              {dim3(static_cast<unsigned>(chunk.rows)), dim3(threads), 0, context.stream}, chunk.logits, chunk.stride,
              static_cast<int>(call.weight.shape[0]), elements<std::int32_t>(call.targets) + chunk.first,
              elements<float>(call.gradScale), elements<float>(call.losses) + chunk.first,
              static_cast<T*>(chunk.gradients)),
          "LinearCrossEntropy");
  });
}

void runChunk(const LinearCrossEntropy& call, const Chunk& chunk, Context& context) {
  MatrixProduct& products = *context.matrixProduct;
  const std::int64_t vocabulary = call.weight.shape[0];
  const Matrix input = matrixOf(rowsOf(call.input, chunk)), weight = matrixOf(call.weight);
  products.run(Product{.left = input,
                       .right = weight,
                       .transposeRight = true,
                       .target = {chunk.logits, DType::f32, chunk.rows, vocabulary, chunk.stride}},
               context.stream);
  if (vocabulary >= longRow) {
    launchLosses<512>(call, chunk, context);
  } else {
    launchLosses<128>(call, chunk, context);
  }
  if (!call.gradInput) return;
  const Matrix gradients{chunk.gradients, call.input.type, chunk.rows, vocabulary, chunk.stride};
  products.run(Product{.left = gradients, .right = weight, .target = matrixOf(rowsOf(call.gradInput, chunk))},
               context.stream);
  if (!call.gradWeight) return;
  Product ofWeight{.left = gradients, .transposeLeft = true, .right = input, .target = matrixOf(call.gradWeight)};
  if (chunk.first > 0 || call.accumulateWeight) accumulate(ofWeight);
  products.run(ofWeight, context.stream);
}

// Elements from a row of logits to the next.
std::int64_t strideOf(const LinearCrossEntropy& call) {
  return ceilDivide(call.weight.shape[0], lanesWide) * lanesWide;
}

}  // namespace

void runInChunks(const LinearCrossEntropy& call, std::int64_t chunkRows, Context& context) {
  const std::int64_t rows = call.input.shape.rows(), stride = strideOf(call);
  if (rows == 0 && call.gradWeight && !call.accumulateWeight) run(Fill{call.gradWeight, 0.0f}, context);
  if (rows == 0) return;
  const std::int64_t count = std::min(rows, chunkRows) * stride;
  float* logits = context.scratch.get<float>(logitsSlot, count);
  void* gradients = nullptr;
  if (call.gradInput) {
    gradients = call.input.type == DType::f32
                    ? logits
                    : context.scratch.get(gradientsSlot, count * base::byteSize(call.input.type));
  }
  for (std::int64_t first = 0; first < rows; first += chunkRows) {
    runChunk(call, Chunk{first, std::min(chunkRows, rows - first), stride, logits, gradients}, context);
  }
}

void run(const LinearCrossEntropy& call, Context& context) {
  const std::int64_t rows = std::max<std::int64_t>(1, call.input.shape.rows());
  const std::int64_t rowBytes = std::max<std::int64_t>(1, strideOf(call)) * static_cast<std::int64_t>(sizeof(float));
  const std::int64_t fitting = std::max<std::int64_t>(1, logitsBytes / rowBytes);
  // Chunks of about one size, whole tiles each.
  const std::int64_t even = ceilDivide(rows, ceilDivide(rows, fitting));
  runInChunks(call, std::min(rows, ceilDivide(even, rowMultiple) * rowMultiple), context);
}

}  // namespace tandem::kernels::cuda
