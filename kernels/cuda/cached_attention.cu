// Attention of a few fresh tokens over a cache. Bound by reading the cache once, so it is cut over enough blocks to
// fill the device, and the queries of all heads that share keys (and of neighbouring tokens) go through them together.
// Neighbouring lanes share a key, eight elements (16 bytes of a 16-bit type) each; a group of lanes keeps its own
// running softmax over the keys it meets, and groups, warps and blocks are combined in a fixed order at the end.

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/attention_heads.h"
#include "kernels/cuda/reduce.h"
#include "kernels/quantised_cache.h"

namespace tandem::kernels::cuda {

namespace {

constexpr int warps = 4;
constexpr int threads = warps * warpLanes;

// --- the cache grows -------------------------------------------------------------------------------------------------

// `C` is what the caches hold: T itself, or int8 for rows of codes (quantised_cache.h).
template <class T, class C = T>
struct Extension {
  Heads<const T> key, value;
  Heads<C> keyCache, valueCache;
  const std::int32_t* lengths;
  unsigned fresh, kvHeads, lanes, rows;  // rows: batch * fresh * kvHeads
  int size;
  bool vectors;
};

template <class T>
__device__ __forceinline__ void copyPiece(T* to, const T* from, int first, int size, bool vectors) {
  if (vectors && first < size) {
    constexpr int words = pieceElements * static_cast<int>(sizeof(T)) / 16;
#pragma unroll
    for (int i = 0; i < words; ++i)
      reinterpret_cast<uint4*>(to + first)[i] = reinterpret_cast<const uint4*>(from + first)[i];
    return;
  }
  for (int i = first; i < min(first + pieceElements, size); ++i) to[i] = from[i];
}

template <class T>
__global__ void __launch_bounds__(threads) extendKernel(Extension<T> call) {
  const unsigned row = blockIdx.x * (threads / call.lanes) + threadIdx.x / call.lanes;
  if (row >= call.rows) return;
  const int first = static_cast<int>(threadIdx.x % call.lanes) * pieceElements;
  const int head = static_cast<int>(row % call.kvHeads), token = static_cast<int>(row / call.kvHeads % call.fresh);
  const int batch = static_cast<int>(row / call.kvHeads / call.fresh), place = call.lengths[batch] + token;
  copyPiece(call.keyCache.at(batch, place, head), call.key.at(batch, token, head), first, call.size, call.vectors);
  copyPiece(call.valueCache.at(batch, place, head), call.value.at(batch, token, head), first, call.size, call.vectors);
}

// Lanes of a row find its scale together, so that none may leave before.
template <class T>
__device__ __forceinline__ void quantiseRow(std::int8_t* row, const T* from, int first, int size, int lanes,
                                            bool isThere) {
  float piece[pieceElements], largest = 0;
  loadPiece(from, first, size, false, piece);
#pragma unroll
  for (int i = 0; i < pieceElements; ++i) largest = fmaxf(largest, fabsf(piece[i]));
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(allLanes, largest, distance));
  }
  if (!isThere) return;
  const float scale = largest / largestCacheCode, inverse = scale > 0 ? 1 / scale : 0.0f;
  if (first == 0) *reinterpret_cast<float*>(row) = scale;
  for (int i = 0; i < min(pieceElements, size - first); ++i) {
    const float code = fminf(fmaxf(rintf(piece[i] * inverse), -largestCacheCode), largestCacheCode);
    row[cacheScaleBytes + first + i] = static_cast<std::int8_t>(code);
  }
}

template <class T>
__global__ void __launch_bounds__(threads) quantiseKernel(Extension<T, std::int8_t> call) {
  const unsigned wanted = blockIdx.x * (threads / call.lanes) + threadIdx.x / call.lanes;
  const bool isThere = wanted < call.rows;
  const unsigned row = isThere ? wanted : call.rows - 1;
  const int first = static_cast<int>(threadIdx.x % call.lanes) * pieceElements, lanes = static_cast<int>(call.lanes);
  const int head = static_cast<int>(row % call.kvHeads), token = static_cast<int>(row / call.kvHeads % call.fresh);
  const int batch = static_cast<int>(row / call.kvHeads / call.fresh), place = call.lengths[batch] + token;
  quantiseRow(call.keyCache.at(batch, place, head), call.key.at(batch, token, head), first, call.size, lanes, isThere);
  quantiseRow(call.valueCache.at(batch, place, head), call.value.at(batch, token, head), first, call.size, lanes,
              isThere);
}

// The piece of a cache's row that begins at element `first`, as numbers.
template <class T>
__device__ __forceinline__ void loadCached(const T* row, int first, int size, bool vectors,
                                           float (&to)[pieceElements]) {
  loadPiece(row, first, size, vectors, to);
}
__device__ __forceinline__ void loadCached(const std::int8_t* row, int first, int size, bool,
                                           float (&to)[pieceElements]) {
  const float scale = *reinterpret_cast<const float*>(row);
#pragma unroll
  for (int begin = 0; begin < pieceElements; begin += 4) {
    std::int32_t word = 0;
    if (first + begin < size) word = *reinterpret_cast<const std::int32_t*>(row + cacheScaleBytes + first + begin);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float code = static_cast<float>(static_cast<std::int8_t>(word >> (8 * i)));
      to[begin + i] = first + begin + i < size ? code * scale : 0.0f;
    }
  }
}

// --- a part of the cache ---------------------------------------------------------------------------------------------

template <class T, class C>
struct Split {
  Heads<const T> query;
  Heads<const C> key, value;
  Heads<T> output;
  float* parts;  // [batch, heads, fresh, splits, size + 2]: sums, largest score, sum of weights; null if splits is 1
  Sight sight;
  Grouping grouping;
  int size, lanes, splits, rowChunks;
  bool vectorQueries, vectorKeys;
  float scale;  // times log2(e): scores are powers of two
};

// A softmax-weighted sum under way, of the eight elements that a lane owns.
struct Running {
  float largest = -INFINITY, weights = 0, sums[pieceElements] = {};

  __device__ __forceinline__ static float finiteBase(float largest) { return largest == -INFINITY ? 0.0f : largest; }
  // Of another one over other keys.
  __device__ __forceinline__ void combine(float otherLargest, float otherWeights,
                                          const float (&otherSums)[pieceElements]) {
    const float base = finiteBase(fmaxf(largest, otherLargest));
    const float factor = exp2f(largest - base), otherFactor = exp2f(otherLargest - base);
    largest = fmaxf(largest, otherLargest);
    weights = weights * factor + otherWeights * otherFactor;
#pragma unroll
    for (int i = 0; i < pieceElements; ++i) sums[i] = sums[i] * factor + otherSums[i] * otherFactor;
  }
};

// Which queries a block has: `rows` neighbours in the order (token, head of the group).
struct RowChunk {
  int batch, kvHead, firstHead, group, begin, count;  // rows [begin, begin + count) of fresh * group

  template <class Call>
  __device__ RowChunk(const Call& call, int index, int rows) {
    const int chunk = index % call.rowChunks;
    kvHead = index / call.rowChunks % call.grouping.kvHeads;
    batch = index / call.rowChunks / call.grouping.kvHeads;
    firstHead = call.grouping.firstHeadOf(kvHead);
    group = call.grouping.firstHeadOf(kvHead + 1) - firstHead;
    begin = chunk * rows;
    count = max(0, min(rows, call.sight.queries * group - begin));
  }
  __device__ int tokenOf(int row) const { return (begin + row) / group; }
  __device__ int headOf(int row) const { return firstHead + (begin + row) % group; }
};

// The keys of a block: its part of those that its rows see.
struct KeyRange {
  int begin, end;

  template <class Call>
  __device__ KeyRange(const Call& call, const RowChunk& chunk, int split) {
    const int first = call.sight.firstKey(chunk.batch, chunk.tokenOf(0));
    const int last = call.sight.position(chunk.batch, chunk.tokenOf(chunk.count - 1)) + 1;
    const int part = (last - first + call.splits - 1) / call.splits;
    begin = min(last, first + split * part);
    end = min(last, begin + part);
  }
};

template <class T, class C, int rows>
__global__ void __launch_bounds__(threads) splitKernel(Split<T, C> call) {
  constexpr int ahead = rows == 1 ? 4 : 2;  // keys whose loads are under way at once
  SHARED_DYNAMIC(float, combined);          // [warps][rows][size + 2]
  const int split = static_cast<int>(blockIdx.x) % call.splits;
  const RowChunk chunk(call, static_cast<int>(blockIdx.x) / call.splits, rows);
  if (chunk.count == 0) return;
  const int lane = threadIdx.x % warpLanes, warp = threadIdx.x / warpLanes;
  const int first = lane % call.lanes * pieceElements, groups = threads / call.lanes;
  const KeyRange range(call, chunk, split);

  float queries[rows][pieceElements];
  int firstKeys[rows], positions[rows];
#pragma unroll
  for (int r = 0; r < rows; ++r) {
    const int row = min(r, chunk.count - 1), token = chunk.tokenOf(row);
    loadPiece(call.query.at(chunk.batch, token, chunk.headOf(row)), first, call.size, call.vectorQueries, queries[r]);
    firstKeys[r] = call.sight.firstKey(chunk.batch, token);
    positions[r] = call.sight.position(chunk.batch, token);
  }

  Running running[rows];
  for (int base = range.begin; base < range.end; base += groups * ahead) {
    float keys[ahead][pieceElements], values[ahead][pieceElements];
    int places[ahead];
#pragma unroll
    for (int a = 0; a < ahead; ++a) {
      places[a] = base + a * groups + static_cast<int>(threadIdx.x) / call.lanes;
      const int size = places[a] < range.end ? call.size : 0, place = min(places[a], range.end - 1);
      loadCached(call.key.at(chunk.batch, place, chunk.kvHead), first, size, call.vectorKeys, keys[a]);
      loadCached(call.value.at(chunk.batch, place, chunk.kvHead), first, size, call.vectorKeys, values[a]);
    }
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      float scores[ahead], largest = running[r].largest;
      bool sees[ahead];
#pragma unroll
      for (int a = 0; a < ahead; ++a) {
        float score = 0;
#pragma unroll
        for (int i = 0; i < pieceElements; ++i) score += queries[r][i] * keys[a][i];
        for (int distance = call.lanes / 2; distance > 0; distance /= 2) {
          score += __shfl_xor_sync(allLanes, score, distance);
        }
        sees[a] = places[a] < range.end && places[a] >= firstKeys[r] && places[a] <= positions[r];
        scores[a] = sees[a] ? score * call.scale : -INFINITY;
        largest = fmaxf(largest, scores[a]);
      }
      const float zero = Running::finiteBase(largest), shrink = exp2f(running[r].largest - zero);
      running[r].largest = largest;
      running[r].weights *= shrink;
#pragma unroll
      for (int i = 0; i < pieceElements; ++i) running[r].sums[i] *= shrink;
#pragma unroll
      for (int a = 0; a < ahead; ++a) {
        const float weight = sees[a] ? exp2f(scores[a] - zero) : 0.0f;
        running[r].weights += weight;
#pragma unroll
        for (int i = 0; i < pieceElements; ++i) running[r].sums[i] += weight * values[a][i];
      }
    }
  }

  // The groups of a warp, then the warps of the block.
  const int stride = call.size + 2;
#pragma unroll
  for (int r = 0; r < rows; ++r) {
    for (int distance = call.lanes; distance < warpLanes; distance *= 2) {
      float sums[pieceElements];
      const float largest = __shfl_xor_sync(allLanes, running[r].largest, distance);
      const float weights = __shfl_xor_sync(allLanes, running[r].weights, distance);
#pragma unroll
      for (int i = 0; i < pieceElements; ++i) sums[i] = __shfl_xor_sync(allLanes, running[r].sums[i], distance);
      running[r].combine(largest, weights, sums);
    }
    float* row = combined + (warp * rows + r) * stride;
    if (lane < call.lanes) {
#pragma unroll
      for (int i = 0; i < pieceElements; ++i) {
        if (first + i < call.size) row[first + i] = running[r].sums[i];
      }
    }
    if (lane == 0) {
      row[call.size] = running[r].largest;
      row[call.size + 1] = running[r].weights;
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < chunk.count * call.size; i += threads) {
    const int r = i / call.size, element = i % call.size;
    float largest = -INFINITY, weights = 0, sum = 0;
    for (int w = 0; w < warps; ++w) largest = fmaxf(largest, combined[(w * rows + r) * stride + call.size]);
    const float base = Running::finiteBase(largest);
    for (int w = 0; w < warps; ++w) {
      const float* row = combined + (w * rows + r) * stride;
      const float factor = exp2f(row[call.size] - base);
      weights += factor * row[call.size + 1];
      sum += factor * row[element];
    }
    const int token = chunk.tokenOf(r), head = chunk.headOf(r);
    if (call.splits == 1) {
      call.output.at(chunk.batch, token, head)[element] = fromFloat<T>(sum / weights);
      continue;
    }
    const std::int64_t place =
        (static_cast<std::int64_t>(chunk.batch) * call.grouping.heads + head) * call.sight.queries + token;
    float* part = call.parts + (place * call.splits + split) * stride;
    part[element] = sum;
    if (element == 0) {
      part[call.size] = largest;
      part[call.size + 1] = weights;
    }
  }
}

// --- the parts together ----------------------------------------------------------------------------------------------

// A warp a query; each of its lanes weighs all parts for a few elements.
template <class T>
__global__ void __launch_bounds__(threads) combineKernel(const float* parts, Heads<T> output, unsigned rows,
                                                         unsigned heads, unsigned fresh, int size, int splits) {
  const unsigned row = blockIdx.x * warps + threadIdx.x / warpLanes;
  if (row >= rows) return;
  const int stride = size + 2;
  const float* part = parts + static_cast<std::int64_t>(row) * splits * stride;
  float largest = -INFINITY, weights = 0;
  for (int split = 0; split < splits; ++split) largest = fmaxf(largest, part[split * stride + size]);
  const float base = Running::finiteBase(largest);
  for (int split = 0; split < splits; ++split) {
    weights += exp2f(part[split * stride + size] - base) * part[split * stride + size + 1];
  }
  T* to = output.at(row / fresh / heads, row % fresh, row / fresh % heads);
  for (int i = threadIdx.x % warpLanes; i < size; i += warpLanes) {
    float sum = 0;
    for (int split = 0; split < splits; ++split) {
      sum += exp2f(part[split * stride + size] - base) * part[split * stride + i];
    }
    to[i] = fromFloat<T>(sum / weights);
  }
}

// Parts of the cache, so that there are a few blocks for each multiprocessor, but none of fewer keys than is worth its
// combining. Depends on shapes alone, since the lengths are on the device: a block takes its share of what is there.
int splitsFor(std::int64_t blocks, std::int64_t capacity, const DeviceProperties& device) {
  constexpr std::int64_t blocksOfMultiprocessor = 4, fewestKeys = 64, most = 64;
  const std::int64_t wanted = ceilDivide(device.multiprocessors * blocksOfMultiprocessor, blocks);
  return static_cast<int>(
      std::clamp<std::int64_t>(wanted, 1, std::clamp<std::int64_t>(capacity / fewestKeys, 1, most)));
}

template <class T, class C, int rows>
void launchSplit(const CachedAttention& call, Context& context) {
  constexpr float log2e = 1.44269504f;
  const Shape& shape = call.query.shape;
  Split<T, C> split;
  split.query = headsOf<T>(call.query);
  const Heads<C> keys = cacheOf<C>(call.keyCache), values = cacheOf<C>(call.valueCache);
  split.key = {keys.data, keys.batchStride, keys.rowStride, keys.headStride};
  split.value = {values.data, values.batchStride, values.rowStride, values.headStride};
  split.output = headsOf<T>(call.output);
  split.sight = {nullptr, elements<std::int32_t>(call.lengths), static_cast<int>(shape[1]),
                 static_cast<int>(call.window)};
  split.grouping = {static_cast<int>(shape[2]), static_cast<int>(call.keyCache.shape[1])};
  split.size = static_cast<int>(shape[3]);
  split.lanes = lanesOfRow(split.size);
  split.rowChunks = static_cast<int>(ceilDivide(shape[1] * split.grouping.largest(), rows));
  const std::int64_t blocks = shape[0] * call.keyCache.shape[1] * split.rowChunks;
  split.splits = splitsFor(blocks, call.keyCache.shape[2], *context.device);
  split.vectorQueries = rowsTakePieces(call.query);
  split.vectorKeys = rowsTakePieces(call.keyCache) && rowsTakePieces(call.valueCache);
  split.scale = call.scale * log2e;
  const int stride = split.size + 2;
  split.parts = split.splits == 1 ? nullptr : context.scratch.get<float>(0, shape.rows() * split.splits * stride);
  const std::size_t shared = sizeof(float) * warps * rows * static_cast<std::size_t>(stride);
  check(launch<splitKernel<T, C, rows>>({static_cast<unsigned>(blocks * split.splits), threads, shared, context.stream},
                                        split),
        "CachedAttention");
  if (split.splits == 1) return;
  check(launch<combineKernel<T>>({static_cast<unsigned>(ceilDivide(shape.rows(), warps)), threads, 0, context.stream},
                                 split.parts, split.output, rowCount(shape), static_cast<unsigned>(shape[2]),
                                 static_cast<unsigned>(shape[1]), split.size, split.splits),
        "CachedAttention, combining");
}

// With T and C of a call.
template <class Body>
void withCache(const CachedAttention& call, Body&& body) {
  withStorage(call.query.type, "CachedAttention", [&](auto element) {
    if (call.keyCache.type == DType::i8) return body(element, std::int8_t{});
    body(element, element);
  });
}

// --- a cache of codes as numbers -------------------------------------------------------------------------------------

template <class T>
struct Numbers {
  Heads<const std::int8_t> cache;
  T* numbers;  // [batch, kvHeads, capacity, size]
  const std::int32_t* lengths;
  std::int64_t rows;  // batch * kvHeads * capacity
  int kvHeads, capacity, fresh, size, lanes;
};

// What lies beyond a sequence's end stays as it is.
template <class T>
__global__ void __launch_bounds__(threads) numbersKernel(Numbers<T> call) {
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * (threads / call.lanes) + static_cast<int>(threadIdx.x) / call.lanes;
  if (row >= call.rows) return;
  const int place = static_cast<int>(row % call.capacity), head = static_cast<int>(row / call.capacity % call.kvHeads);
  const int batch = static_cast<int>(row / call.capacity / call.kvHeads);
  if (place >= call.lengths[batch] + call.fresh) return;
  const int first = static_cast<int>(threadIdx.x) % call.lanes * pieceElements;
  float piece[pieceElements];
  loadCached(call.cache.at(batch, place, head), first, call.size, false, piece);
  for (int i = 0; i < min(pieceElements, call.size - first); ++i) {
    call.numbers[row * call.size + first + i] = fromFloat<T>(piece[i]);
  }
}

template <class T>
TensorView makeNumbers(const CachedAttention& call, const TensorView& cache, int slot, Context& context) {
  const Shape shape = {cache.shape[0], cache.shape[1], cache.shape[2], call.query.shape[3]};
  const Heads<std::int8_t> codes = cacheOf<std::int8_t>(cache);
  Numbers<T> numbers;
  numbers.cache = {codes.data, codes.batchStride, codes.rowStride, codes.headStride};
  numbers.numbers = context.scratch.get<T>(slot, shape.count());
  numbers.lengths = elements<std::int32_t>(call.lengths);
  numbers.rows = shape.rows();
  numbers.kvHeads = static_cast<int>(shape[1]);
  numbers.capacity = static_cast<int>(shape[2]);
  numbers.fresh = static_cast<int>(call.query.shape[1]);
  numbers.size = static_cast<int>(shape[3]);
  numbers.lanes = lanesOfRow(numbers.size);
  const unsigned blocks = static_cast<unsigned>(ceilDivide(shape.rows() * numbers.lanes, threads));
  check(launch<numbersKernel<T>>({blocks, threads, 0, context.stream}, numbers), "CachedAttention, its numbers");
  return {numbers.numbers, call.query.type, shape};
}

}  // namespace

void extendCache(const CachedAttention& call, Context& context) {
  withCache(call, [&](auto element, auto cached) {
    using T = decltype(element);
    using C = decltype(cached);
    const Shape& shape = call.key.shape;
    Extension<T, C> extension;
    extension.key = headsOf<T>(call.key);
    extension.value = headsOf<T>(call.value);
    extension.keyCache = cacheOf<C>(call.keyCache);
    extension.valueCache = cacheOf<C>(call.valueCache);
    extension.lengths = elements<std::int32_t>(call.lengths);
    extension.fresh = static_cast<unsigned>(shape[1]);
    extension.kvHeads = static_cast<unsigned>(shape[2]);
    extension.size = static_cast<int>(shape[3]);
    extension.lanes = static_cast<unsigned>(lanesOfRow(extension.size));
    extension.rows = rowCount(shape);
    extension.vectors = rowsTakePieces(call.key) && rowsTakePieces(call.value) && rowsTakePieces(call.keyCache) &&
                        rowsTakePieces(call.valueCache);
    const unsigned blocks = static_cast<unsigned>(ceilDivide(shape.rows() * extension.lanes, threads));
    const Grid where{blocks, threads, 0, context.stream};
    if constexpr (std::is_same_v<C, T>) {
      check(launch<extendKernel<T>>(where, extension), "CachedAttention, its cache");
    } else {
      check(launch<quantiseKernel<T>>(where, extension), "CachedAttention, its cache");
    }
  });
}

void splitOverCache(const CachedAttention& call, Context& context) {
  withCache(call, [&](auto element, auto cached) {
    using T = decltype(element);
    using C = decltype(cached);
    const std::int64_t rows = call.query.shape[1] * ceilDivide(call.query.shape[2], call.keyCache.shape[1]);
    if (rows == 1) return launchSplit<T, C, 1>(call, context);
    if (rows <= 4) return launchSplit<T, C, 4>(call, context);
    launchSplit<T, C, 8>(call, context);
  });
}

CachedAttention withNumbers(const CachedAttention& call, Context& context) {
  CachedAttention result = call;
  if (call.keyCache.type != DType::i8) return result;
  withStorage(call.query.type, "CachedAttention", [&](auto element) {
    using T = decltype(element);
    result.keyCache = makeNumbers<T>(call, call.keyCache, 1, context);
    result.valueCache = makeNumbers<T>(call, call.valueCache, 2, context);
  });
  return result;
}

}  // namespace tandem::kernels::cuda
