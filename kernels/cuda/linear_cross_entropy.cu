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
// the same memory: each thread writes only what it alone reads. `scaleStride`: 1 where each row has a gradScale, else
// 0.
template <class T, int threads>
__global__ void __launch_bounds__(threads)
    crossEntropyKernel(const float* logits, std::int64_t stride, int vocabulary, const std::int32_t* targets,
                       const float* gradScale, int scaleStride, float* losses, T* gradients) {
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
  if (to != nullptr) writeGradients<threads>(row, all, gradScale[blockIdx.x * scaleStride], to);
}

// Where the weight is that of a part of the vocabulary: one of `partials` and `logSumExp` is given.
struct Part {
  std::int64_t firstToken = 0;
  float* partials = nullptr;         // [2, rows]; to be written
  const float* logSumExp = nullptr;  // [rows], of the whole vocabulary
};

// What a part contributes to each row: its log-sum-exp, and the target's logit where that is in the part.
template <int threads>
__global__ void __launch_bounds__(threads)
    partialsKernel(const float* logits, std::int64_t stride, int vocabulary, const std::int32_t* targets,
                   std::int64_t firstToken, float* logSumExps, float* wanted) {
  const std::int64_t target = targets[blockIdx.x] - firstToken;
  if (targets[blockIdx.x] < 0) {
    if (threadIdx.x == 0) logSumExps[blockIdx.x] = wanted[blockIdx.x] = 0;
    return;
  }
  const Row row{logits + blockIdx.x * stride, vocabulary, 0};
  const Running all = statisticsOf<threads>(row);
  if (threadIdx.x != 0) return;
  logSumExps[blockIdx.x] = all.largest + logf(all.sum);
  wanted[blockIdx.x] = target >= 0 && target < vocabulary ? row.logits[target] : 0.0f;
}

// The gradients of a part's logits, given the log-sum-exp of the whole vocabulary.
template <class T, int threads>
__global__ void __launch_bounds__(threads)
    partialGradientsKernel(const float* logits, std::int64_t stride, int vocabulary, const std::int32_t* targets,
                           std::int64_t firstToken, const float* logSumExps, const float* gradScale, T* gradients) {
  T* const to = gradients + blockIdx.x * stride;
  if (targets[blockIdx.x] < 0) {
    writeZeros<threads>(vocabulary, to);
    return;
  }
  const std::int64_t target = targets[blockIdx.x] - firstToken;
  const Row row{logits + blockIdx.x * stride, vocabulary,
                target >= 0 && target < vocabulary ? static_cast<int>(target) : -1};
  writeGradients<threads>(row, Running{logSumExps[blockIdx.x], 1.0f}, *gradScale, to);
}

constexpr int mergeThreads = 128;

__global__ void __launch_bounds__(mergeThreads)
    mergeKernel(const float* partials, std::int64_t parts, std::int64_t rows, const std::int32_t* targets,
                float* losses, float* logSumExps) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * mergeThreads + threadIdx.x;
  if (row >= rows) return;
  float top = partials[row], sum = 0, wanted = 0;
  for (std::int64_t part = 1; part < parts; ++part) top = fmaxf(top, partials[part * 2 * rows + row]);
  for (std::int64_t part = 0; part < parts; ++part) {
    sum += __expf(partials[part * 2 * rows + row] - top);
    wanted += partials[(part * 2 + 1) * rows + row];
  }
  const float logSumExp = targets[row] >= 0 ? top + logf(sum) : 0.0f;
  logSumExps[row] = logSumExp;
  losses[row] = targets[row] >= 0 ? logSumExp - wanted : 0.0f;
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
void launchLosses(const LinearCrossEntropy& call, const Part& part, const Chunk& chunk, Context& context) {
  const Grid grid(dim3(static_cast<unsigned>(chunk.rows)), dim3(threads), 0, context.stream);
  const int vocabulary = static_cast<int>(call.weight.shape[0]);
  const std::int32_t* targets = elements<std::int32_t>(call.targets) + chunk.first;
  if (part.partials != nullptr) {
    check(launch<partialsKernel<threads>>(grid, static_cast<const float*>(chunk.logits), chunk.stride, vocabulary,
                                          targets, part.firstToken, part.partials + chunk.first,
                                          part.partials + call.input.shape.rows() + chunk.first),
          "PartialCrossEntropy");
    return;
  }
  if (part.logSumExp != nullptr) {
    withStorage(call.input.type, "PartialCrossEntropyBackward", [&](auto element) {
      using T = decltype(element);
      check(launch<partialGradientsKernel<T, threads>>(
                grid, static_cast<const float*>(chunk.logits), chunk.stride, vocabulary, targets, part.firstToken,
                part.logSumExp + chunk.first, elements<float>(call.gradScale), static_cast<T*>(chunk.gradients)),
            "PartialCrossEntropyBackward");
    });
    return;
  }
  withStorage(call.input.type, "LinearCrossEntropy", [&](auto element) {
    using T = decltype(element);
    const int scaleStride = call.gradInput && call.gradScale.shape.count() > 1 ? 1 : 0;
    const float* gradScale = call.gradInput ? elements<float>(call.gradScale) + chunk.first * scaleStride : nullptr;
    check(launch<crossEntropyKernel<T, threads>>(grid, chunk.logits, chunk.stride, vocabulary, targets, gradScale,
                                                 scaleStride, elements<float>(call.losses) + chunk.first,
                                                 static_cast<T*>(chunk.gradients)),
          "LinearCrossEntropy");
  });
}

void runChunk(const LinearCrossEntropy& call, const Part& part, const Chunk& chunk, Context& context) {
  MatrixProduct& products = *context.matrixProduct;
  const std::int64_t vocabulary = call.weight.shape[0];
  const Matrix input = matrixOf(rowsOf(call.input, chunk)), weight = matrixOf(call.weight);
  products.run(Product{.left = input,
                       .right = weight,
                       .transposeRight = true,
                       .target = {chunk.logits, DType::f32, chunk.rows, vocabulary, chunk.stride}},
               context.stream, context.scratch);
  if (vocabulary >= longRow) {
    launchLosses<512>(call, part, chunk, context);
  } else {
    launchLosses<128>(call, part, chunk, context);
  }
  if (!call.gradInput) return;
  const Matrix gradients{chunk.gradients, call.input.type, chunk.rows, vocabulary, chunk.stride};
  products.run(Product{.left = gradients, .right = weight, .target = matrixOf(rowsOf(call.gradInput, chunk))},
               context.stream, context.scratch);
  if (!call.gradWeight) return;
  Product ofWeight{.left = gradients, .transposeLeft = true, .right = input, .target = matrixOf(call.gradWeight)};
  if (chunk.first > 0 || call.accumulateWeight) accumulate(ofWeight);
  products.run(ofWeight, context.stream, context.scratch);
}

// Elements from a row of logits to the next.
std::int64_t strideOf(const LinearCrossEntropy& call) {
  return ceilDivide(call.weight.shape[0], lanesWide) * lanesWide;
}

void runPart(const LinearCrossEntropy& call, const Part& part, std::int64_t chunkRows, Context& context) {
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
    runChunk(call, part, Chunk{first, std::min(chunkRows, rows - first), stride, logits, gradients}, context);
  }
}

// Chunks of about one size, whole tiles each.
std::int64_t chunkRowsOf(const LinearCrossEntropy& call) {
  const std::int64_t rows = std::max<std::int64_t>(1, call.input.shape.rows());
  const std::int64_t rowBytes = std::max<std::int64_t>(1, strideOf(call)) * static_cast<std::int64_t>(sizeof(float));
  const std::int64_t fitting = std::max<std::int64_t>(1, logitsBytes / rowBytes);
  const std::int64_t even = ceilDivide(rows, ceilDivide(rows, fitting));
  return std::min(rows, ceilDivide(even, rowMultiple) * rowMultiple);
}

}  // namespace

void runInChunks(const LinearCrossEntropy& call, std::int64_t chunkRows, Context& context) {
  runPart(call, {}, chunkRows, context);
}

void run(const LinearCrossEntropy& call, Context& context) { runPart(call, {}, chunkRowsOf(call), context); }

void run(const PartialCrossEntropy& call, Context& context) {
  const LinearCrossEntropy whole{.input = call.input, .weight = call.weight, .targets = call.targets};
  runPart(whole, {.firstToken = call.firstToken, .partials = elements<float>(call.partials)}, chunkRowsOf(whole),
          context);
}

void run(const PartialCrossEntropyBackward& call, Context& context) {
  const LinearCrossEntropy whole{.input = call.input,
                                 .weight = call.weight,
                                 .targets = call.targets,
                                 .gradScale = call.gradScale,
                                 .gradInput = call.gradInput,
                                 .gradWeight = call.gradWeight,
                                 .accumulateWeight = call.accumulateWeight};
  runPart(whole, {.firstToken = call.firstToken, .logSumExp = elements<float>(call.logSumExp)}, chunkRowsOf(whole),
          context);
}

void run(const MergeCrossEntropy& call, Context& context) {
  const std::int64_t rows = call.targets.shape.count();
  if (rows == 0) return;
  check(launch<mergeKernel>(
            {dim3(static_cast<unsigned>(ceilDivide(rows, mergeThreads))), dim3(mergeThreads), 0, context.stream},
            elements<float>(call.partials), call.partials.shape[0], rows, elements<std::int32_t>(call.targets),
            elements<float>(call.losses), elements<float>(call.logSumExp)),
        "MergeCrossEntropy");
}

}  // namespace tandem::kernels::cuda
