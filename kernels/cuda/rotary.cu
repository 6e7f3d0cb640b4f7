// Rotary position embedding over the fused projection, with the optional RMS norm of queries and keys before it.
//
// Memory bounds it once the sines and cosines are out of the way: a block takes a few rows, computes theirs into shared
// memory, and all heads of a row use them. Groups of neighbouring lanes then take a head each (values only pass
// through): lane j holds the vectors j, j + lanes, ... of the head's first half and those they are rotated with. A
// group that has a head in its registers can also normalise it.
//
// Backward with QK-norm sums over rows and heads for the two weights: its blocks are few and stay, lanes keep the sums
// of their columns in registers, and what blocks have at their end goes into scratch memory for column_sums.h.
#include <algorithm>
#include <bit>
#include <string>

#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/operators.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/storage.h"

namespace tandem::kernels::cuda {

namespace {

constexpr int rotaryThreads = 256;
constexpr std::int64_t maximalRows = 16;     // of a block at once
constexpr std::int64_t maximalPairs = 4096;  // whose sines and cosines lie in shared memory: 32 KiB
constexpr int manyVectors = 8;               // of one element that a lane holds of either half of a head

// What every kernel here needs to know of the layout.
struct RotaryLayout {
  std::int64_t rows;
  int heads, turned, all;  // queries; and keys; and values
  int half;                // of the head size
  int lanes;               // that share a head
  int blockRows;           // that a block works on at once
  std::int64_t width;      // of a row
  const std::int32_t* positions;
  const float* frequencies;
};

// The head that a group of lanes works on.
struct HeadPlace {
  std::int64_t row;
  int localRow, head;
  bool exists;
};

__device__ __forceinline__ HeadPlace headPlace(const RotaryLayout& layout, std::int64_t firstRow, int index) {
  HeadPlace place;
  place.localRow = index / layout.all;
  place.head = index % layout.all;
  place.row = firstRow + place.localRow;
  place.exists = place.localRow < layout.blockRows && place.row < layout.rows;
  return place;
}

// sin and cos of position * frequency for the block's rows, [blockRows][half] each. The angle is a product of two
// floats, too long for one: what rounding loses of it, a tenth of a turn at position 10 million, is turned afterwards.
__device__ __forceinline__ void fillTurns(const RotaryLayout& layout, std::int64_t firstRow, float* sines,
                                          float* cosines) {
  for (int i = static_cast<int>(threadIdx.x); i < layout.blockRows * layout.half; i += rotaryThreads) {
    const std::int64_t row = firstRow + i / layout.half;
    if (row >= layout.rows) return;
    const float position = static_cast<float>(layout.positions[row]), frequency = layout.frequencies[i % layout.half];
    const float angle = position * frequency;
    const float lost = fmaf(position, frequency, -angle);
    float sine, cosine;
    sincosf(angle, &sine, &cosine);
    sines[i] = fmaf(cosine, lost, sine);
    cosines[i] = fmaf(-sine, lost, cosine);
  }
}

// The sum over the lanes that share a head; all lanes of the warp take part.
__device__ __forceinline__ float headSum(float value, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(allLanes, value, distance);
  return value;
}

// A head in the registers of a group of lanes.
template <int N, int kept>
struct Head {
  float first[kept][N], second[kept][N];  // element i of the first half beside element i of the second

  template <class Body>
  __device__ __forceinline__ static void forVectors(const RotaryLayout& layout, Body&& body) {
    const int lane = static_cast<int>(threadIdx.x) % layout.lanes;
#pragma unroll
    for (int k = 0; k < kept; ++k) {
      const int column = (k * layout.lanes + lane) * N;
      if (column < layout.half) body(k, column);
    }
  }
  template <class T>
  __device__ __forceinline__ void read(const RotaryLayout& layout, const T* from) {
    forVectors(layout, [&](int k, int column) {
      load(from + column, first[k]);
      load(from + layout.half + column, second[k]);
    });
  }
  template <class T>
  __device__ __forceinline__ void write(const RotaryLayout& layout, T* to) const {
    forVectors(layout, [&](int k, int column) {
      store(to + column, first[k]);
      store(to + layout.half + column, second[k]);
    });
  }
  // By the angles at sines[column], cosines[column]; direction 1 forwards, -1 back.
  __device__ __forceinline__ void rotate(const RotaryLayout& layout, const float* sines, const float* cosines,
                                         float direction) {
    forVectors(layout, [&](int k, int column) {
      float sine[N], cosine[N];
      load(sines + column, sine);
      load(cosines + column, cosine);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float a = first[k][i], b = second[k][i], s = direction * sine[i];
        first[k][i] = fmaf(-b, s, a * cosine[i]);
        second[k][i] = fmaf(a, s, b * cosine[i]);
      }
    });
  }
};

// --- forward ---------------------------------------------------------------------------------------------------------

template <class T>
struct RotaryOperands {
  RotaryLayout layout;
  const T *input, *queryWeight, *keyWeight;
  T* output;
  float* reciprocal;
  float epsilon;
};

// head = head / sqrt(average(head^2) + epsilon) * weight; returns the factor before the weight. Lanes of groups without
// a head to normalise only take part in the sum.
template <int N, int kept, class T>
__device__ __forceinline__ float normalise(Head<N, kept>& head, const RotaryLayout& layout, const T* weight,
                                           float epsilon, bool wanted) {
  float squares = 0;
  if (wanted) {
    head.forVectors(layout, [&](int k, int) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        squares = fmaf(head.first[k][i], head.first[k][i], squares);
        squares = fmaf(head.second[k][i], head.second[k][i], squares);
      }
    });
  }
  squares = headSum(squares, layout.lanes);
  if (!wanted) return 0;
  const float reciprocal = rsqrtf(squares / static_cast<float>(2 * layout.half) + epsilon);
  head.forVectors(layout, [&](int k, int column) {
    float a[N], b[N];
    load(weight + column, a);
    load(weight + layout.half + column, b);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      head.first[k][i] *= reciprocal * a[i];
      head.second[k][i] *= reciprocal * b[i];
    }
  });
  return reciprocal;
}

template <class T, int N, int kept, bool normalised>
__global__ void __launch_bounds__(rotaryThreads) rotaryKernel(RotaryOperands<T> op) {
  const RotaryLayout& layout = op.layout;
  SHARED_DYNAMIC(float, sines);
  float* cosines = sines + layout.blockRows * layout.half;
  const std::int64_t firstRow = static_cast<std::int64_t>(blockIdx.x) * layout.blockRows;
  fillTurns(layout, firstRow, sines, cosines);
  __syncthreads();

  const int groups = rotaryThreads / layout.lanes, group = static_cast<int>(threadIdx.x) / layout.lanes;
  for (int begin = 0; begin < layout.blockRows * layout.all; begin += groups) {
    const HeadPlace place = headPlace(layout, firstRow, begin + group);
    const bool turned = place.head < layout.turned;
    const bool moves = place.exists && (turned || op.output != op.input);
    const std::int64_t at = place.row * layout.width + static_cast<std::int64_t>(place.head) * 2 * layout.half;
    Head<N, kept> head;
    if (moves) head.read(layout, op.input + at);
    if constexpr (normalised) {
      const float reciprocal = normalise(head, layout, place.head < layout.heads ? op.queryWeight : op.keyWeight,
                                         op.epsilon, moves && turned);
      if (moves && turned && threadIdx.x % layout.lanes == 0) {
        op.reciprocal[place.row * layout.turned + place.head] = reciprocal;
      }
    }
    if (!moves) continue;
    if (turned) {
      head.rotate(layout, sines + place.localRow * layout.half, cosines + place.localRow * layout.half, 1.0f);
    }
    head.write(layout, op.output + at);
  }
}

// --- backward --------------------------------------------------------------------------------------------------------

template <class T>
struct RotaryBackwardOperands {
  RotaryLayout layout;
  const T *gradOutput, *input, *queryWeight, *keyWeight;
  const float* reciprocal;
  T* gradInput;
  float* parts;  // [blocks][2][head size]: what each block sums for the weights of queries and keys
};

// The sums over heads that a lane takes for its columns of one weight.
template <int N, int kept>
struct WeightSums {
  float first[kept][N] = {}, second[kept][N] = {};
};

// The gradient of the norm of a head, in place: with x = input * reciprocal and g = gradient * weight, sums += gradient
// * x and gradient = reciprocal * (g - x * average(g * x)).
template <int N, int kept, class T>
__device__ __forceinline__ void normaliseBack(Head<N, kept>& gradient, const RotaryLayout& layout, const T* input,
                                              const T* weight, float reciprocal, WeightSums<N, kept>& sums,
                                              bool wanted) {
  Head<N, kept> x;
  float product = 0;
  if (wanted) {
    x.read(layout, input);
    x.forVectors(layout, [&](int k, int column) {
      float a[N], b[N];
      load(weight + column, a);
      load(weight + layout.half + column, b);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        x.first[k][i] *= reciprocal;
        x.second[k][i] *= reciprocal;
        sums.first[k][i] = fmaf(gradient.first[k][i], x.first[k][i], sums.first[k][i]);
        sums.second[k][i] = fmaf(gradient.second[k][i], x.second[k][i], sums.second[k][i]);
        gradient.first[k][i] *= a[i];
        gradient.second[k][i] *= b[i];
        product = fmaf(gradient.first[k][i], x.first[k][i], product);
        product = fmaf(gradient.second[k][i], x.second[k][i], product);
      }
    });
  }
  const float average = headSum(product, layout.lanes) / static_cast<float>(2 * layout.half);
  if (!wanted) return;
  x.forVectors(layout, [&](int k, int) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      gradient.first[k][i] = reciprocal * fmaf(-x.first[k][i], average, gradient.first[k][i]);
      gradient.second[k][i] = reciprocal * fmaf(-x.second[k][i], average, gradient.second[k][i]);
    }
  });
}

// Adds up the sums that the block's groups of lanes have for one weight, those of a warp by shuffles, those of the
// warps in their order through `shared` ([2 * half]); the result goes to `target`.
template <int N, int kept>
__device__ __forceinline__ void combineGroups(WeightSums<N, kept>& sums, const RotaryLayout& layout, float* shared,
                                              float* target) {
  for (int distance = layout.lanes; distance < warpLanes; distance *= 2) {
#pragma unroll
    for (int k = 0; k < kept; ++k) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        sums.first[k][i] += __shfl_xor_sync(allLanes, sums.first[k][i], distance);
        sums.second[k][i] += __shfl_xor_sync(allLanes, sums.second[k][i], distance);
      }
    }
  }
  const int warp = static_cast<int>(threadIdx.x) / warpLanes, lane = static_cast<int>(threadIdx.x) % warpLanes;
  for (int turn = 0; turn < rotaryThreads / warpLanes; ++turn) {
    __syncthreads();
    if (turn != warp || lane >= layout.lanes) continue;
    Head<N, kept>::forVectors(layout, [&](int k, int column) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        float &a = shared[column + i], &b = shared[layout.half + column + i];
        a = turn == 0 ? sums.first[k][i] : a + sums.first[k][i];
        b = turn == 0 ? sums.second[k][i] : b + sums.second[k][i];
      }
    });
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < 2 * layout.half; i += rotaryThreads) target[i] = shared[i];
}

template <class T, int N, int kept, bool normalised>
__global__ void __launch_bounds__(rotaryThreads, kept > 1 ? 1 : 2) rotaryBackwardKernel(RotaryBackwardOperands<T> op) {
  const RotaryLayout& layout = op.layout;
  SHARED_DYNAMIC(float, sines);
  float* cosines = sines + layout.blockRows * layout.half;
  const int groups = rotaryThreads / layout.lanes, group = static_cast<int>(threadIdx.x) / layout.lanes;
  WeightSums<N, kept> querySums, keySums;

  for (std::int64_t firstRow = static_cast<std::int64_t>(blockIdx.x) * layout.blockRows; firstRow < layout.rows;
       firstRow += static_cast<std::int64_t>(gridDim.x) * layout.blockRows) {
    __syncthreads();  // the last rows' turns are no longer read
    fillTurns(layout, firstRow, sines, cosines);
    __syncthreads();
    for (int begin = 0; begin < layout.blockRows * layout.all; begin += groups) {
      const HeadPlace place = headPlace(layout, firstRow, begin + group);
      const bool turned = place.head < layout.turned;
      const bool moves = place.exists && (turned || op.gradInput != op.gradOutput);
      const std::int64_t at = place.row * layout.width + static_cast<std::int64_t>(place.head) * 2 * layout.half;
      Head<N, kept> head;
      if (moves) head.read(layout, op.gradOutput + at);
      if (moves && turned) {
        head.rotate(layout, sines + place.localRow * layout.half, cosines + place.localRow * layout.half, -1.0f);
      }
      if constexpr (normalised) {
        const bool wanted = moves && turned, isQuery = place.head < layout.heads;
        const float reciprocal = wanted ? op.reciprocal[place.row * layout.turned + place.head] : 0.0f;
        // Once for each weight, since registers cannot be picked at run time; the lanes of a warp take part in both.
        normaliseBack(head, layout, op.input + at, op.queryWeight, reciprocal, querySums, wanted && isQuery);
        normaliseBack(head, layout, op.input + at, op.keyWeight, reciprocal, keySums, wanted && !isQuery);
      }
      if (moves) head.write(layout, op.gradInput + at);
    }
  }
  if constexpr (normalised) {
    float* parts = op.parts + static_cast<std::int64_t>(blockIdx.x) * 4 * layout.half;
    combineGroups(querySums, layout, sines, parts);
    combineGroups(keySums, layout, sines, parts + 2 * layout.half);
  }
}

// --- launches --------------------------------------------------------------------------------------------------------

// `n` elements a vector.
RotaryLayout layoutOf(const HeadLayout& given, const ConstTensorView& positions, const ConstTensorView& frequencies,
                      std::int64_t rows, int n) {
  RotaryLayout layout;
  layout.rows = rows;
  layout.heads = static_cast<int>(given.heads);
  layout.turned = static_cast<int>(given.heads + given.kvHeads);
  layout.all = static_cast<int>(given.heads + 2 * given.kvHeads);
  layout.half = static_cast<int>(given.headSize / 2);
  const auto vectors = static_cast<unsigned>(ceilDivide(layout.half, n));
  layout.lanes = std::min(warpLanes, static_cast<int>(std::bit_ceil(vectors)));
  // Four heads a group of lanes, so that the sines and cosines do not count; no more than fit.
  const std::int64_t wanted = ceilDivide(4 * rotaryThreads, std::int64_t{layout.all} * layout.lanes);
  layout.blockRows =
      static_cast<int>(std::min({wanted, maximalRows, rows, std::max<std::int64_t>(1, maximalPairs / layout.half)}));
  layout.width = given.width();
  layout.positions = elements<std::int32_t>(positions);
  layout.frequencies = elements<float>(frequencies);
  return layout;
}

std::size_t turnBytes(const RotaryLayout& layout) {
  return static_cast<std::size_t>(layout.blockRows) * static_cast<std::size_t>(layout.half) * 2 * sizeof(float);
}

// Calls body(vector, kept) with how many elements a vector has and how many of them a lane holds of each half.
template <int n, class Body>
void withHead(const char* operatorName, std::int64_t headSize, bool vectors, Body&& body) {
  const std::int64_t half = headSize / 2;
  if (vectors && half <= warpLanes * n) {
    body(std::integral_constant<int, n>{}, std::integral_constant<int, 1>{});
  } else if (half <= warpLanes * manyVectors) {
    body(std::integral_constant<int, 1>{}, std::integral_constant<int, manyVectors>{});
  } else {
    throw base::Error(base::ErrorKind::usage, std::string("the CUDA operator ") + operatorName + " takes heads of " +
                                                  std::to_string(2 * warpLanes * manyVectors) +
                                                  " elements at most, not of " + std::to_string(headSize) +
                                                  "; choose a model with smaller heads, or --device cpu");
  }
}

template <class T>
void runRotary(const Rotary& call, Context& context) {
  constexpr int n = vectorElements<T>;
  const std::int64_t size = call.layout.headSize;
  const bool vectors = rowsTakeVectors<n>(size / 2, call.input, call.output, call.queryWeight, call.keyWeight);
  withHead<n>("Rotary", size, vectors, [&](auto vector, auto kept) {
    RotaryOperands<T> op{layoutOf(call.layout, call.positions, call.frequencies, call.input.shape.rows(), vector()),
                         elements<T>(call.input),
                         elements<T>(call.queryWeight),
                         elements<T>(call.keyWeight),
                         elements<T>(call.output),
                         elements<float>(call.reciprocal),
                         call.epsilon};
    const Grid grid(dim3(static_cast<unsigned>(ceilDivide(op.layout.rows, op.layout.blockRows))), dim3(rotaryThreads),
                    turnBytes(op.layout), context.stream);
    check(call.queryWeight ? launch<rotaryKernel<T, vector(), kept(), true>>(grid, op)
                           : launch<rotaryKernel<T, vector(), kept(), false>>(grid, op),
          "Rotary");
  });
}

// Returns how many blocks there were, each of which left its sums.
template <class T>
std::int64_t runRotaryBackward(const RotaryBackward& call, Context& context) {
  constexpr int n = vectorElements<T>;
  const std::int64_t size = call.layout.headSize;
  const bool vectors =
      rowsTakeVectors<n>(size / 2, call.gradOutput, call.gradInput, call.input, call.queryWeight, call.keyWeight);
  std::int64_t blocks = 0;
  withHead<n>("RotaryBackward", size, vectors, [&](auto vector, auto kept) {
    RotaryBackwardOperands<T> op{
        layoutOf(call.layout, call.positions, call.frequencies, call.gradOutput.shape.rows(), vector()),
        elements<T>(call.gradOutput),
        elements<T>(call.input),
        elements<T>(call.queryWeight),
        elements<T>(call.keyWeight),
        elements<float>(call.reciprocal),
        elements<T>(call.gradInput),
        nullptr};
    blocks = ceilDivide(op.layout.rows, op.layout.blockRows);
    if (call.queryWeight) {  // four turns a block at least, so that few rows do not leave many sums
      blocks = std::min<std::int64_t>(ceilDivide(blocks, 4), std::int64_t{2} * context.device->multiprocessors);
      op.parts = context.scratch.get<float>(0, blocks * 2 * size);
    }
    // The room of the turns is enough for the sums of one weight, too: blockRows >= 1.
    const Grid grid(dim3(static_cast<unsigned>(blocks)), dim3(rotaryThreads), turnBytes(op.layout), context.stream);
    check(call.queryWeight ? launch<rotaryBackwardKernel<T, vector(), kept(), true>>(grid, op)
                           : launch<rotaryBackwardKernel<T, vector(), kept(), false>>(grid, op),
          "RotaryBackward");
  });
  return blocks;
}

}  // namespace

void run(const Rotary& call, Context& context) {
  if (call.input.shape.count() == 0) return;
  withStorage(call.input.type, "Rotary", [&](auto element) { runRotary<decltype(element)>(call, context); });
}

void run(const RotaryBackward& call, Context& context) {
  std::int64_t blocks = 0;
  if (call.gradOutput.shape.count() > 0) {
    withStorage(call.gradOutput.type, "RotaryBackward",
                [&](auto element) { blocks = runRotaryBackward<decltype(element)>(call, context); });
  }
  if (!call.queryWeight) return;
  const std::int64_t size = call.layout.headSize;
  const float* parts = context.scratch.get<float>(0, blocks * 2 * size);  // what was filled just now
  addColumnSums(parts, blocks, 2 * size, size, elements<float>(call.gradQueryWeight), call.accumulate, context.stream);
  addColumnSums(blocks > 0 ? parts + size : nullptr, blocks, 2 * size, size, elements<float>(call.gradKeyWeight),
                call.accumulate, context.stream);
}

}  // namespace tandem::kernels::cuda
