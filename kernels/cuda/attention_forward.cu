// Flash attention (Dao 2023, "FlashAttention-2", section 3) on mma.sync: a block keeps a tile of queries in registers
// and goes over the tiles of keys that any of them sees, with a running softmax; the next keys and values arrive by
// cp.async meanwhile. Each warp has its own rows, so nothing but the tiles is shared, and one barrier a tile is enough.
// Bound by the tensor cores; where registers allow (head size 64), a warp has 32 rows, which halves the reads of shared
// memory for each product.

#include "kernels/cuda/attention_tiles.h"

namespace tandem::kernels::cuda {

namespace {

constexpr int tileKeys = 64;

template <int size>
struct ForwardShape {
  static constexpr int rowTiles = size == 64 ? 2 : 1;  // of 16 rows, a warp
  static constexpr int warps = size == 64 ? 4 : 8;
  static constexpr int threads = warps * warpLanes;
  static constexpr int warpQueries = 16 * rowTiles;
  static constexpr int queries = warps * warpQueries;
  static constexpr std::size_t sharedBytes = 2 * 2 * tileKeys * size * 2;  // keys and values, two stages, two bytes
};

template <class T>
struct FlashForward {
  Heads<const T> query, key, value;
  Heads<T> output;
  float* logSumExp;  // null: not wanted
  Sight sight;
  Grouping grouping;
  int tiles;    // of queries, a head
  float scale;  // times log2(e): scores are powers of two
};

template <class T, int size>
__global__ void __launch_bounds__(ForwardShape<size>::threads) flashForwardKernel(FlashForward<T> call) {
  using Shape = ForwardShape<size>;
  constexpr int rowTiles = Shape::rowTiles;
  SHARED_DYNAMIC(T, shared);
  const auto keyTile = [&](int stage) { return Tile<T, size>{shared + stage * tileKeys * size}; };
  const auto valueTile = [&](int stage) { return Tile<T, size>{shared + (2 + stage) * tileKeys * size}; };

  // The last tiles of a head see the most keys and begin first.
  const int tile = call.tiles - 1 - static_cast<int>(blockIdx.x) % call.tiles;
  const int head = static_cast<int>(blockIdx.x) / call.tiles % call.grouping.heads;
  const int batch = static_cast<int>(blockIdx.x) / call.tiles / call.grouping.heads;
  const int kvHead = call.grouping.kvHeadOf(head), queries = call.sight.queries;
  const int firstQuery = tile * Shape::queries, lastQuery = min(firstQuery + Shape::queries, queries) - 1;
  const int firstTile = call.sight.firstKey(batch, firstQuery) / tileKeys;
  const int endKey = call.sight.position(batch, lastQuery) + 1, lastTile = (endKey - 1) / tileKeys;
  const T* keys = call.key.at(batch, 0, kvHead);
  const T* values = call.value.at(batch, 0, kvHead);
  const auto copyTiles = [&](int at, int stage) {
    keyTile(stage).template copy<tileKeys, Shape::threads>(keys, call.key.rowStride, at * tileKeys, endKey);
    valueTile(stage).template copy<tileKeys, Shape::threads>(values, call.value.rowStride, at * tileKeys, endKey);
    ptx::cp_async_commit();
  };
  copyTiles(firstTile, 0);

  // What the warp's rows see: all of [lastFirst, firstPosition], none outside [firstFirst, lastPosition].
  const FragmentLane lane;
  const int warpQuery = firstQuery + static_cast<int>(threadIdx.x) / warpLanes * Shape::warpQueries;
  const bool works = warpQuery < queries;
  const int warpEnd = works ? min(warpQuery + Shape::warpQueries, queries) - 1 : 0;
  const int firstFirst = call.sight.firstKey(batch, works ? warpQuery : 0);
  const int lastFirst = call.sight.firstKey(batch, warpEnd);
  const int firstPosition = call.sight.position(batch, works ? warpQuery : 0);
  const int lastPosition = call.sight.position(batch, warpEnd);
  const int position = call.sight.position(batch, warpQuery + lane.g);  // of the first row; the others follow
  int firstKeys[rowTiles][2];
  std::uint32_t left[rowTiles][size / 16][4];
#pragma unroll
  for (int m = 0; m < rowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = min(warpQuery + 16 * m + lane.g + 8 * half, queries - 1);
      firstKeys[m][half] = call.sight.firstKey(batch, query);
    }
    loadLeft<T, size>(left[m], call.query.at(batch, 0, head), call.query.rowStride, warpQuery + 16 * m, queries);
  }

  float sums[rowTiles][size / 8][4] = {}, largest[rowTiles][2], weights[rowTiles][2] = {};
#pragma unroll
  for (int m = 0; m < rowTiles; ++m) largest[m][0] = largest[m][1] = -INFINITY;

  for (int at = firstTile; at <= lastTile; ++at) {
    const int stage = (at - firstTile) % 2, firstKey = at * tileKeys;
    ptx::cp_async_wait<0>();
    __syncthreads();  // this tile has arrived for all, and all are done with the stage that the next one fills
    if (at < lastTile) copyTiles(at + 1, 1 - stage);
    if (!works || firstKey > lastPosition || firstKey + tileKeys <= firstFirst) continue;

    float scores[rowTiles][tileKeys / 8][4] = {};
    addDots<T, size, rowTiles, tileKeys>(scores, left, keyTile(stage));
#pragma unroll
    for (int m = 0; m < rowTiles; ++m) {
#pragma unroll
      for (int n = 0; n < tileKeys / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[m][n][i] *= call.scale;
      }
    }
    if (firstKey < lastFirst || firstKey + tileKeys - 1 > firstPosition) {  // some row does not see all
#pragma unroll
      for (int m = 0; m < rowTiles; ++m) {
#pragma unroll
        for (int n = 0; n < tileKeys / 8; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int key = firstKey + 8 * n + 2 * lane.t + i % 2;
            const bool sees = key >= firstKeys[m][i / 2] && key <= position + 16 * m + i / 2 * 8;
            if (!sees) scores[m][n][i] = -INFINITY;
          }
        }
      }
    }
    std::uint32_t packedWeights[rowTiles][tileKeys / 16][4];
#pragma unroll
    for (int m = 0; m < rowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float grown = largest[m][half];
#pragma unroll
        for (int n = 0; n < tileKeys / 8; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            grown = fmaxf(grown, scores[m][n][2 * half + i]);
          }
        }
        grown = fmaxf(grown, __shfl_xor_sync(allLanes, grown, 1));
        grown = fmaxf(grown, __shfl_xor_sync(allLanes, grown, 2));
        const float base = grown == -INFINITY ? 0.0f : grown;  // a row that has seen no key yet weighs all by 0
        const float shrink = ptx::exp2(largest[m][half] - base);
        largest[m][half] = grown;
        weights[m][half] *= shrink;
#pragma unroll
        for (int n = 0; n < size / 8; ++n) {
          sums[m][n][2 * half] *= shrink;
          sums[m][n][2 * half + 1] *= shrink;
        }
#pragma unroll
        for (int n = 0; n < tileKeys / 8; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float& score = scores[m][n][2 * half + i];
            score = ptx::exp2(score - base);
            weights[m][half] += score;
          }
        }
      }
      packLeft<T, tileKeys>(packedWeights[m], scores[m]);
    }
    addWeighted<T, size, rowTiles, tileKeys>(sums, packedWeights, valueTile(stage));
  }

  if (!works) return;
#pragma unroll
  for (int m = 0; m < rowTiles; ++m) {
    float factors[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float all = weights[m][half];
      all += __shfl_xor_sync(allLanes, all, 1);
      all += __shfl_xor_sync(allLanes, all, 2);
      factors[half] = 1 / all;
      const int query = warpQuery + 16 * m + lane.g + 8 * half;
      if (call.logSumExp != nullptr && lane.t == 0 && query < queries) {
        constexpr float log2 = 0.693147181f;
        call.logSumExp[(static_cast<std::int64_t>(batch) * call.grouping.heads + head) * queries + query] =
            (largest[m][half] + log2f(all)) * log2;
      }
    }
    storeProducts<T, size>(sums[m], factors, call.output.at(batch, 0, head), call.output.rowStride, warpQuery + 16 * m,
                           queries);
  }
}

template <class T, int size>
void launchForward(FlashForward<T> forward, std::int64_t batch, const char* what, Context& context) {
  using Shape = ForwardShape<size>;
  forward.tiles = static_cast<int>(ceilDivide(forward.sight.queries, Shape::queries));
  const unsigned blocks = static_cast<unsigned>(batch * forward.grouping.heads * forward.tiles);
  check(launch<flashForwardKernel<T, size>>({blocks, Shape::threads, Shape::sharedBytes, context.stream}, forward),
        what);
}

constexpr float log2e = 1.44269504f;

}  // namespace

void flashForward(const Attention& call, Context& context) {
  withHalf(call.query.type, [&](auto element) {
    using T = decltype(element);
    const base::Shape& shape = call.query.shape;
    FlashForward<T> forward;
    setOperands<T>(forward, call);
    forward.scale = call.scale * log2e;
    withTileSize(shape[3], [&](auto size) { launchForward<T, size()>(forward, shape[0], "Attention", context); });
  });
}

void flashOverCache(const CachedAttention& call, Context& context) {
  withHalf(call.query.type, [&](auto element) {
    using T = decltype(element);
    const base::Shape& shape = call.query.shape;
    const Heads<T> keys = cacheOf<T>(call.keyCache), values = cacheOf<T>(call.valueCache);
    FlashForward<T> forward;
    forward.query = headsOf<T>(call.query);
    forward.key = {keys.data, keys.batchStride, keys.rowStride, keys.headStride};
    forward.value = {values.data, values.batchStride, values.rowStride, values.headStride};
    forward.output = headsOf<T>(call.output);
    forward.logSumExp = nullptr;
    forward.sight = {nullptr, elements<std::int32_t>(call.lengths), static_cast<int>(shape[1]),
                     static_cast<int>(call.window)};
    forward.grouping = {static_cast<int>(shape[2]), static_cast<int>(call.keyCache.shape[1])};
    forward.scale = call.scale * log2e;
    withTileSize(shape[3], [&](auto size) { launchForward<T, size()>(forward, shape[0], "CachedAttention", context); });
  });
}

}  // namespace tandem::kernels::cuda
