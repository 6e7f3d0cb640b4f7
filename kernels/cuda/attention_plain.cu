// Attention by plain arithmetic: what the tensor cores cannot take (float32, other head sizes, rows at odd addresses),
// and the check of the kernels that use them. A warp does one query (or, for the gradients of keys and values, one
// key): 32 keys at a time, first a key a lane for the scores, then a few elements of the head a lane for the sums, so
// that lanes meet a dozen times for 32 keys. Bound by the loads of the scores, whose lanes read different rows.

#include "kernels/cuda/attention_heads.h"
#include "kernels/cuda/reduce.h"

namespace tandem::kernels::cuda {

namespace {

constexpr int warps = 4;         // a block; each goes its own way
constexpr int blocksAtOnce = 6;  // of a multiprocessor: 80 registers a thread, with which nothing is spilled
constexpr int longestRow = static_cast<int>(largestHeadSize);

template <class T>
struct PlainForward {
  Heads<const T> query, key, value;
  Heads<T> output;
  float* logSumExp;
  Sight sight;
  Grouping grouping;
  unsigned rows;  // batch * heads * time
  int size;
  bool vectors;
  float scale;
};

template <class T>
struct PlainBackward {
  Heads<const T> query, key, value, gradOutput;
  Heads<T> gradQuery, gradKey, gradValue;
  const float* logSumExp;
  const float* deltas;
  Sight sight;
  Grouping grouping;
  unsigned rows;  // batch * heads * time, for the keys batch * kvHeads * keys
  int size;
  bool vectors;
  float scale;
};

// Which query or key a warp has: (batch, head, place) from a row of [batch, heads, time].
struct Place {
  int batch, head, place;
  __device__ Place(unsigned row, unsigned heads, unsigned time)
      : batch(static_cast<int>(row / time / heads)),
        head(static_cast<int>(row / time % heads)),
        place(static_cast<int>(row % time)) {}
};

__device__ __forceinline__ unsigned rowOfWarp() { return blockIdx.x * warps + threadIdx.x / warpLanes; }

// One row into shared memory by a warp, which then meets.
template <class T>
__device__ __forceinline__ void shareRow(const T* row, int size, float* shared) {
  for (int i = threadIdx.x % warpLanes; i < size; i += warpLanes) shared[i] = toFloat(row[i]);
}

template <class T>
__device__ __forceinline__ float dot(const float* shared, const T* row, int size, bool vectors) {
  float sum = 0;
  for (int first = 0; first < size; first += pieceElements) {
    float piece[pieceElements];
    loadPiece(row, first, size, vectors, piece);
#pragma unroll
    for (int i = 0; i < pieceElements; ++i) {
      if (first + i < size) sum += shared[first + i] * piece[i];
    }
  }
  return sum;
}

// sums += factor * row, of the elements that this lane owns: lane, lane + 32...
template <int owned, class T>
__device__ __forceinline__ void addRow(float (&sums)[owned], float factor, const T* row, int size) {
#pragma unroll
  for (int i = 0; i < owned; ++i) {
    const int at = static_cast<int>(threadIdx.x) % warpLanes + i * warpLanes;
    if (at < size) sums[i] += factor * toFloat(row[at]);
  }
}

template <int owned, class T>
__device__ __forceinline__ void storeRow(const float (&sums)[owned], float factor, T* row, int size) {
#pragma unroll
  for (int i = 0; i < owned; ++i) {
    const int at = static_cast<int>(threadIdx.x) % warpLanes + i * warpLanes;
    if (at < size) row[at] = fromFloat<T>(factor * sums[i]);
  }
}

template <class T, int owned>
__global__ void __launch_bounds__(warps* warpLanes, blocksAtOnce) plainForwardKernel(PlainForward<T> call) {
  SHARED_ARRAY(float, queries, [warps][longestRow]);
  SHARED_ARRAY(float, weights, [warps][warpLanes]);
  const unsigned row = rowOfWarp();
  if (row >= call.rows) return;
  const int warp = threadIdx.x / warpLanes, lane = threadIdx.x % warpLanes;
  const Place at(row, call.grouping.heads, call.sight.queries);
  const int kvHead = call.grouping.kvHeadOf(at.head), first = call.sight.firstKey(at.batch, at.place);
  const int last = call.sight.lastKey(at.batch, at.place);
  shareRow(call.query.at(at.batch, at.place, at.head), call.size, queries[warp]);
  __syncwarp();
  float largest = -INFINITY, sum = 0, sums[owned] = {};
  for (int chunk = first; chunk <= last; chunk += warpLanes) {
    const int key = chunk + lane;
    const bool sees = key <= last;
    const float score =
        sees ? call.scale * dot(queries[warp], call.key.at(at.batch, key, kvHead), call.size, call.vectors) : -INFINITY;
    const float grown = fmaxf(largest, warpMax(score));
    const float base = grown == -INFINITY ? 0.0f : grown;  // an infinite base would make numbers of nothing NaN
    const float weight = sees ? expf(score - base) : 0.0f, shrink = expf(largest - base);
    largest = grown;
    sum = sum * shrink + warpSum(weight);
    weights[warp][lane] = weight;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < owned; ++i) sums[i] *= shrink;
    const int count = min(warpLanes, last - chunk + 1);
    for (int j = 0; j < count; ++j) {
      addRow(sums, weights[warp][j], call.value.at(at.batch, chunk + j, kvHead), call.size);
    }
    __syncwarp();  // before the next weights are written over these
  }
  storeRow(sums, first > last ? 0.0f : 1 / sum, call.output.at(at.batch, at.place, at.head), call.size);
  if (lane == 0) call.logSumExp[row] = largest + logf(sum);
}

// With P = exp(scale q.k - logSumExp) and dS = P (gradOutput.v - delta): gradQuery = scale dS k.
template <class T, int owned>
__global__ void __launch_bounds__(warps* warpLanes, blocksAtOnce) plainQueryBackwardKernel(PlainBackward<T> call) {
  SHARED_ARRAY(float, queries, [warps][longestRow]);
  SHARED_ARRAY(float, gradients, [warps][longestRow]);
  SHARED_ARRAY(float, gradScores, [warps][warpLanes]);
  const unsigned row = rowOfWarp();
  if (row >= call.rows) return;
  const int warp = threadIdx.x / warpLanes, lane = threadIdx.x % warpLanes;
  const Place at(row, call.grouping.heads, call.sight.queries);
  const int kvHead = call.grouping.kvHeadOf(at.head), first = call.sight.firstKey(at.batch, at.place);
  const int last = call.sight.lastKey(at.batch, at.place);
  shareRow(call.query.at(at.batch, at.place, at.head), call.size, queries[warp]);
  shareRow(call.gradOutput.at(at.batch, at.place, at.head), call.size, gradients[warp]);
  __syncwarp();
  const float logSumExp = call.logSumExp[row], delta = call.deltas[row];
  float sums[owned] = {};
  for (int chunk = first; chunk <= last; chunk += warpLanes) {
    const int key = chunk + lane;
    float gradScore = 0;
    if (key <= last) {
      const float score = call.scale * dot(queries[warp], call.key.at(at.batch, key, kvHead), call.size, call.vectors);
      const float gradWeight = dot(gradients[warp], call.value.at(at.batch, key, kvHead), call.size, call.vectors);
      gradScore = expf(score - logSumExp) * (gradWeight - delta);
    }
    gradScores[warp][lane] = gradScore;
    __syncwarp();
    const int count = min(warpLanes, last - chunk + 1);
    for (int j = 0; j < count; ++j) {
      addRow(sums, gradScores[warp][j], call.key.at(at.batch, chunk + j, kvHead), call.size);
    }
    __syncwarp();  // before the next gradients are written over these
  }
  storeRow(sums, call.scale, call.gradQuery.at(at.batch, at.place, at.head), call.size);
}

// gradValue = P gradOutput, gradKey = scale dS q, over the queries of all heads that read the key, in their order.
template <class T, int owned>
__global__ void __launch_bounds__(warps* warpLanes, blocksAtOnce) plainKeyBackwardKernel(PlainBackward<T> call) {
  SHARED_ARRAY(float, keys, [warps][longestRow]);
  SHARED_ARRAY(float, values, [warps][longestRow]);
  SHARED_ARRAY(float, weights, [warps][warpLanes]);
  SHARED_ARRAY(float, gradScores, [warps][warpLanes]);
  const unsigned row = rowOfWarp();
  if (row >= call.rows) return;
  const int warp = threadIdx.x / warpLanes, lane = threadIdx.x % warpLanes, time = call.sight.queries;
  const Place at(row, call.grouping.kvHeads, call.sight.keys);
  const int firstQuery = max(0, at.place - call.sight.earlier);  // that stands no earlier than the key
  shareRow(call.key.at(at.batch, at.place, at.head), call.size, keys[warp]);
  shareRow(call.value.at(at.batch, at.place, at.head), call.size, values[warp]);
  __syncwarp();
  float keySums[owned] = {}, valueSums[owned] = {};
  const int endHead = call.grouping.firstHeadOf(at.head + 1);
  for (int head = call.grouping.firstHeadOf(at.head); head < endHead; ++head) {
    const std::int64_t statistics = (static_cast<std::int64_t>(at.batch) * call.grouping.heads + head) * time;
    for (int chunk = firstQuery; chunk < time && call.sight.firstKey(at.batch, chunk) <= at.place; chunk += warpLanes) {
      const int query = chunk + lane;
      float weight = 0, gradScore = 0;
      const bool sees = query < time && call.sight.firstKey(at.batch, query) <= at.place;
      if (sees) {
        const float score = call.scale * dot(keys[warp], call.query.at(at.batch, query, head), call.size, call.vectors);
        weight = expf(score - call.logSumExp[statistics + query]);
        const float gradWeight = dot(values[warp], call.gradOutput.at(at.batch, query, head), call.size, call.vectors);
        gradScore = weight * (gradWeight - call.deltas[statistics + query]);
      }
      weights[warp][lane] = weight;
      gradScores[warp][lane] = gradScore;
      const int count = __popc(__ballot_sync(allLanes, sees));  // those that see the key come first
      __syncwarp();
      for (int j = 0; j < count; ++j) {
        addRow(valueSums, weights[warp][j], call.gradOutput.at(at.batch, chunk + j, head), call.size);
        addRow(keySums, gradScores[warp][j], call.query.at(at.batch, chunk + j, head), call.size);
      }
      __syncwarp();  // before the next weights are written over these
    }
  }
  storeRow(keySums, call.scale, call.gradKey.at(at.batch, at.place, at.head), call.size);
  storeRow(valueSums, 1.0f, call.gradValue.at(at.batch, at.place, at.head), call.size);
}

// Calls body with the elements of a row that each of 32 lanes owns, as a constant.
template <class Body>
void withOwned(std::int64_t size, Body&& body) {
  if (size <= 32) return body(std::integral_constant<int, 1>{});
  if (size <= 64) return body(std::integral_constant<int, 2>{});
  if (size <= 128) return body(std::integral_constant<int, 4>{});
  body(std::integral_constant<int, 8>{});
}

Grid gridFor(unsigned rows, const Context& context, std::source_location where = std::source_location::current()) {
  return {dim3(static_cast<unsigned>(ceilDivide(rows, warps))), dim3(warps * warpLanes), 0, context.stream, where};
}

// A warp a row of queries and head.
template <class T>
__global__ void __launch_bounds__(warps* warpLanes)
    mergeKernel(Heads<const T> other, const float* otherLogSumExp, Heads<T> output, float* logSumExp, unsigned rows,
                unsigned heads, unsigned time, int size) {
  const unsigned row = rowOfWarp();
  if (row >= rows) return;
  const Place at(row, heads, time);
  const float own = logSumExp[row], others = otherLogSumExp[row], top = fmaxf(own, others);
  const bool nothing = top == -INFINITY;
  const float both = nothing ? top : top + logf(expf(own - top) + expf(others - top));
  const float share = nothing ? 0.0f : expf(own - both), otherShare = nothing ? 0.0f : expf(others - both);
  T* const to = output.at(at.batch, at.place, at.head);
  const T* const from = other.at(at.batch, at.place, at.head);
  for (int i = static_cast<int>(threadIdx.x) % warpLanes; i < size; i += warpLanes) {
    to[i] = fromFloat<T>(share * toFloat(to[i]) + otherShare * toFloat(from[i]));
  }
  __syncwarp();  // all lanes have read
  if (threadIdx.x % warpLanes == 0) logSumExp[row] = both;
}

}  // namespace

void run(const MergeAttention& call, Context& context) {
  if (call.output.shape.count() == 0) return;
  withStorage(call.output.type, "MergeAttention", [&](auto element) {
    using T = decltype(element);
    const Shape& shape = call.output.shape;
    check(launch<mergeKernel<T>>(gridFor(rowCount(shape), context), headsOf<T>(call.otherOutput),
                                 elements<float>(call.otherLogSumExp), headsOf<T>(call.output),
                                 elements<float>(call.logSumExp), rowCount(shape), static_cast<unsigned>(shape[2]),
                                 static_cast<unsigned>(shape[1]), static_cast<int>(shape[3])),
          "MergeAttention");
  });
}

void plainForward(const Attention& call, Context& context) {
  withStorage(call.query.type, "Attention", [&](auto element) {
    using T = decltype(element);
    const Shape& shape = call.query.shape;
    PlainForward<T> forward;
    setOperands<T>(forward, call);
    forward.rows = rowCount(shape);
    forward.size = static_cast<int>(shape[3]);
    forward.vectors = rowsTakePieces(call.key);
    withOwned(shape[3], [&](auto owned) {
      check(launch<plainForwardKernel<T, owned()>>(gridFor(forward.rows, context), forward), "Attention");
    });
  });
}

void plainBackward(const AttentionBackward& call, Context& context) {
  withStorage(call.query.type, "AttentionBackward", [&](auto element) {
    using T = decltype(element);
    const Shape& shape = call.query.shape;
    float* deltas = context.scratch.get<float>(0, shape.rows());
    attentionDeltas(call, deltas, context);
    PlainBackward<T> backward;
    setOperands<T>(backward, call, deltas);
    backward.size = static_cast<int>(shape[3]);
    backward.vectors = rowsTakePieces(call.query) && rowsTakePieces(call.key) && rowsTakePieces(call.value) &&
                       rowsTakePieces(call.gradOutput);
    withOwned(shape[3], [&](auto owned) {
      backward.rows = rowCount(shape);
      check(launch<plainQueryBackwardKernel<T, owned()>>(gridFor(backward.rows, context), backward),
            "AttentionBackward, queries");
      backward.rows = rowCount(call.key.shape);
      check(launch<plainKeyBackwardKernel<T, owned()>>(gridFor(backward.rows, context), backward),
            "AttentionBackward, keys");
    });
  });
}

}  // namespace tandem::kernels::cuda
