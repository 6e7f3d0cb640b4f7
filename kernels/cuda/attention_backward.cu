// The backward pass of flash attention on mma.sync, in two kernels that each sum in a fixed order without atomics:
// queries over the tiles of keys they see, then keys over the tiles of queries (of all heads that share them) that see
// them. Scores are computed again in both, from the log-sum-exp of the forward pass; 7 products instead of the 5 of a
// single pass (FlashAttention-2, algorithm 2), whose gradient of the queries is a sum over blocks in no fixed order.
// With P = exp(scale q.k - logSumExp), delta = gradOutput.output and dS = P (gradOutput.v - delta):
//   gradQuery = scale dS k, gradKey = scale dS^T q, gradValue = P^T gradOutput.
// The keys' kernel computes the transposes S^T = k q^T, whose products are left operands as they lie in registers, so
// that no weight passes through shared memory. Bound by the tensor cores and the reads of shared memory.

#include "kernels/cuda/attention_tiles.h"

namespace tandem::kernels::cuda {

namespace {

constexpr int warps = 8;
constexpr int threads = warps * warpLanes;
constexpr int blockRows = 16 * warps;  // queries of a block of the one kernel, keys of a block of the other
constexpr float log2e = 1.44269504f;

template <class T>
struct FlashBackward {
  Heads<const T> query, key, value, gradOutput;
  Heads<T> gradQuery, gradKey, gradValue;
  const float* logSumExp;
  const float* deltas;
  Sight sight;
  Grouping grouping;
  int tiles;  // of queries or of keys, a head
  float scale;

  __device__ std::int64_t statistics(int batch, int head) const {
    return (static_cast<std::int64_t>(batch) * grouping.heads + head) * sight.queries;
  }
};

// --- gradients of queries
// ----------------------------------------------------------------------------------------------

template <int size>
struct QueryShape {
  static constexpr int keys = size > 80 ? 32 : 64;                     // of a tile; registers are short for large heads
  static constexpr std::size_t sharedBytes = 2 * 2 * keys * size * 2;  // keys and values, two stages, two bytes
};

template <class T, int size>
__global__ void __launch_bounds__(threads) flashQueryBackwardKernel(FlashBackward<T> call) {
  constexpr int tileKeys = QueryShape<size>::keys;
  SHARED_DYNAMIC(T, shared);
  const auto keyTile = [&](int stage) { return Tile<T, size>{shared + stage * tileKeys * size}; };
  const auto valueTile = [&](int stage) { return Tile<T, size>{shared + (2 + stage) * tileKeys * size}; };

  // The last tiles of a head see the most keys and begin first.
  const int tile = call.tiles - 1 - static_cast<int>(blockIdx.x) % call.tiles;
  const int head = static_cast<int>(blockIdx.x) / call.tiles % call.grouping.heads;
  const int batch = static_cast<int>(blockIdx.x) / call.tiles / call.grouping.heads;
  const int kvHead = call.grouping.kvHeadOf(head), time = call.sight.queries;
  const int firstQuery = tile * blockRows, lastQuery = min(firstQuery + blockRows, time) - 1;
  const int firstTile = call.sight.firstKey(batch, firstQuery) / tileKeys, lastTile = lastQuery / tileKeys;
  const T* keys = call.key.at(batch, 0, kvHead);
  const T* values = call.value.at(batch, 0, kvHead);
  const auto copyTiles = [&](int at, int stage) {
    keyTile(stage).template copy<tileKeys, threads>(keys, call.key.rowStride, at * tileKeys, lastQuery + 1);
    valueTile(stage).template copy<tileKeys, threads>(values, call.value.rowStride, at * tileKeys, lastQuery + 1);
    ptx::cp_async_commit();
  };
  copyTiles(firstTile, 0);

  const FragmentLane lane;
  const int warpQuery = firstQuery + static_cast<int>(threadIdx.x) / warpLanes * 16;
  const bool works = warpQuery < time;
  const int lastOfWarp = min(warpQuery + 15, time - 1);
  const int firstFirst = works ? call.sight.firstKey(batch, warpQuery) : 0;
  const int lastFirst = call.sight.firstKey(batch, lastOfWarp);
  int firstKeys[2], rows[2];
  float logSumExps[2], deltas[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    rows[half] = min(warpQuery + lane.g + 8 * half, time - 1);
    firstKeys[half] = call.sight.firstKey(batch, rows[half]);
    logSumExps[half] = call.logSumExp[call.statistics(batch, head) + rows[half]] * log2e;
    deltas[half] = call.deltas[call.statistics(batch, head) + rows[half]];
  }
  std::uint32_t queries[1][size / 16][4], gradOutputs[1][size / 16][4];
  loadLeft<T, size>(queries[0], call.query.at(batch, 0, head), call.query.rowStride, warpQuery, time);
  loadLeft<T, size>(gradOutputs[0], call.gradOutput.at(batch, 0, head), call.gradOutput.rowStride, warpQuery, time);
  const float scoreScale = call.scale * log2e;

  float sums[1][size / 8][4] = {};
  for (int at = firstTile; at <= lastTile; ++at) {
    const int stage = (at - firstTile) % 2, firstKey = at * tileKeys;
    ptx::cp_async_wait<0>();
    __syncthreads();  // this tile has arrived for all, and all are done with the stage that the next one fills
    if (at < lastTile) copyTiles(at + 1, 1 - stage);
    if (!works || firstKey > lastOfWarp || firstKey + tileKeys <= firstFirst) continue;

    float weights[1][tileKeys / 8][4] = {}, gradWeights[1][tileKeys / 8][4] = {};
    addDots<T, size, 1, tileKeys>(weights, queries, keyTile(stage));
    addDots<T, size, 1, tileKeys>(gradWeights, gradOutputs, valueTile(stage));
    const bool seesAll = firstKey >= lastFirst && firstKey + tileKeys - 1 <= warpQuery;
#pragma unroll
    for (int n = 0; n < tileKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int half = i / 2, key = firstKey + 8 * n + 2 * lane.t + i % 2;
        const bool sees = seesAll || (key >= firstKeys[half] && key <= rows[half]);
        const float weight = ptx::exp2(weights[0][n][i] * scoreScale - logSumExps[half]);
        gradWeights[0][n][i] = sees ? weight * (gradWeights[0][n][i] - deltas[half]) : 0.0f;
      }
    }
    std::uint32_t gradScores[1][tileKeys / 16][4];
    packLeft<T, tileKeys>(gradScores[0], gradWeights[0]);
    addWeighted<T, size, 1, tileKeys>(sums, gradScores, keyTile(stage));
  }
  if (!works) return;
  storeProducts<T, size>(sums[0], {call.scale, call.scale}, call.gradQuery.at(batch, 0, head), call.gradQuery.rowStride,
                         warpQuery, time);
}

// --- gradients of keys and values
// ------------------------------------------------------------------------------------------

template <int size>
struct KeyShape {
  static constexpr int queries = size == 128 ? 32 : 64;  // of a tile; registers and shared memory are short
  // Keys and values, then queries and gradients of outputs in two stages; two bytes each.
  static constexpr std::size_t sharedBytes = (2 * blockRows + 2 * 2 * queries) * size * 2;
};

template <class T, int size>
__global__ void __launch_bounds__(threads) flashKeyBackwardKernel(FlashBackward<T> call) {
  constexpr int tileQueries = KeyShape<size>::queries;
  SHARED_DYNAMIC(T, shared);
  SHARED_ARRAY(float, logSumExps, [2][tileQueries]);
  SHARED_ARRAY(float, deltas, [2][tileQueries]);
  SHARED_ARRAY(int, firstKeys, [2][tileQueries]);
  const Tile<T, size> keyTile{shared}, valueTile{shared + blockRows * size};
  T* const stages = shared + 2 * blockRows * size;
  const auto queryTile = [&](int stage) { return Tile<T, size>{stages + stage * tileQueries * size}; };
  const auto gradOutputTile = [&](int stage) { return Tile<T, size>{stages + (2 + stage) * tileQueries * size}; };

  // The first tiles of a head are seen by the most queries and begin first.
  const int tile = static_cast<int>(blockIdx.x) % call.tiles;
  const int kvHead = static_cast<int>(blockIdx.x) / call.tiles % call.grouping.kvHeads;
  const int batch = static_cast<int>(blockIdx.x) / call.tiles / call.grouping.kvHeads;
  const int time = call.sight.queries, firstKey = tile * blockRows, endKey = min(firstKey + blockRows, time);
  const int firstHead = call.grouping.firstHeadOf(kvHead);
  const int heads = call.grouping.firstHeadOf(kvHead + 1) - firstHead;
  // Tiles of queries from that of the first key on, up to the last whose first query, and so whose others, sees a key.
  const int firstTile = firstKey / tileQueries;
  int endTile = firstTile + 1, notBefore = (time + tileQueries - 1) / tileQueries;
  while (endTile < notBefore) {
    const int middle = (endTile + notBefore) / 2;
    if (call.sight.firstKey(batch, middle * tileQueries) < endKey) {
      endTile = middle + 1;
    } else {
      notBefore = middle;
    }
  }
  const int tilesOfHead = endTile - firstTile, steps = heads * tilesOfHead;

  const auto copyQueries = [&](int step, int stage) {
    const int head = firstHead + step / tilesOfHead, firstQuery = (firstTile + step % tilesOfHead) * tileQueries;
    queryTile(stage).template copy<tileQueries, threads>(call.query.at(batch, 0, head), call.query.rowStride,
                                                         firstQuery, time);
    gradOutputTile(stage).template copy<tileQueries, threads>(call.gradOutput.at(batch, 0, head),
                                                              call.gradOutput.rowStride, firstQuery, time);
    ptx::cp_async_commit();
    for (int i = threadIdx.x; i < tileQueries; i += threads) {
      const int query = min(firstQuery + i, time - 1);
      logSumExps[stage][i] = call.logSumExp[call.statistics(batch, head) + query] * log2e;
      deltas[stage][i] = call.deltas[call.statistics(batch, head) + query];
      firstKeys[stage][i] = firstQuery + i < time ? call.sight.firstKey(batch, query) : time;  // sees none
    }
  };
  keyTile.template copy<blockRows, threads>(call.key.at(batch, 0, kvHead), call.key.rowStride, firstKey, time);
  valueTile.template copy<blockRows, threads>(call.value.at(batch, 0, kvHead), call.value.rowStride, firstKey, time);
  copyQueries(0, 0);

  const FragmentLane lane;
  const int warpRow = static_cast<int>(threadIdx.x) / warpLanes * 16, warpKey = firstKey + warpRow;
  const float scoreScale = call.scale * log2e;
  float keySums[1][size / 8][4] = {}, valueSums[1][size / 8][4] = {};
  for (int step = 0; step < steps; ++step) {
    const int stage = step % 2, firstQuery = (firstTile + step % tilesOfHead) * tileQueries;
    ptx::cp_async_wait<0>();
    __syncthreads();  // this tile has arrived for all, and all are done with the stage that the next one fills
    if (step + 1 < steps) copyQueries(step + 1, 1 - stage);
    if (warpKey >= time || firstQuery + tileQueries <= warpKey || firstKeys[stage][0] > warpKey + 15) continue;

    float weights[tileQueries / 8][4] = {}, gradWeights[tileQueries / 8][4] = {};
    addDotsOfTiles<T, size, tileQueries>(weights, keyTile, warpRow, queryTile(stage));
#pragma unroll
    for (int n = 0; n < tileQueries / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = 8 * n + 2 * lane.t + i % 2, key = warpKey + lane.g + 8 * (i / 2);
        const bool sees = key >= firstKeys[stage][row] && key <= firstQuery + row;
        weights[n][i] = sees ? ptx::exp2(weights[n][i] * scoreScale - logSumExps[stage][row]) : 0.0f;
      }
    }
    std::uint32_t left[1][tileQueries / 16][4];
    packLeft<T, tileQueries>(left[0], weights);
    addWeighted<T, size, 1, tileQueries>(valueSums, left, gradOutputTile(stage));
    addDotsOfTiles<T, size, tileQueries>(gradWeights, valueTile, warpRow, gradOutputTile(stage));
#pragma unroll
    for (int n = 0; n < tileQueries / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        gradWeights[n][i] = weights[n][i] * (gradWeights[n][i] - deltas[stage][8 * n + 2 * lane.t + i % 2]);
      }
    }
    packLeft<T, tileQueries>(left[0], gradWeights);
    addWeighted<T, size, 1, tileQueries>(keySums, left, queryTile(stage));
  }
  if (warpKey >= time) return;
  storeProducts<T, size>(keySums[0], {call.scale, call.scale}, call.gradKey.at(batch, 0, kvHead),
                         call.gradKey.rowStride, warpKey, time);
  storeProducts<T, size>(valueSums[0], {1.0f, 1.0f}, call.gradValue.at(batch, 0, kvHead), call.gradValue.rowStride,
                         warpKey, time);
}

template <class T, int size>
void launchBackward(const FlashBackward<T>& backward, std::int64_t batch, Context& context) {
  const auto blocks = [&](int heads) { return static_cast<unsigned>(batch * heads * backward.tiles); };
  check(launch<flashQueryBackwardKernel<T, size>>(
            {blocks(backward.grouping.heads), threads, QueryShape<size>::sharedBytes, context.stream}, backward),
        "AttentionBackward, queries");
  check(launch<flashKeyBackwardKernel<T, size>>(
            {blocks(backward.grouping.kvHeads), threads, KeyShape<size>::sharedBytes, context.stream}, backward),
        "AttentionBackward, keys");
}

}  // namespace

void flashBackward(const AttentionBackward& call, Context& context) {
  withHalf(call.query.type, [&](auto element) {
    using T = decltype(element);
    const base::Shape& shape = call.query.shape;
    float* deltas = context.scratch.get<float>(0, shape.rows());
    attentionDeltas(call, deltas, context);
    FlashBackward<T> backward;
    setOperands<T>(backward, call, deltas);
    backward.tiles = static_cast<int>(ceilDivide(shape[1], blockRows));
    withTileSize(shape[3], [&](auto size) { launchBackward<T, size()>(backward, shape[0], context); });
  });
}

}  // namespace tandem::kernels::cuda
