// Flash attention, forward (Dao et al. 2022): tiles of queries meet blocks of keys, the softmax is carried along with a
// running maximum and sum, and no score leaves the cache. Used by attention.cpp and, over the cache of earlier tokens,
// by cached_attention.cpp. Compiled once a target.
//
// A unit of work is some tiles of queries of one (batch, kvHead): keys and values are packed once for all of them, so
// the query heads that share a key head share its packing. A tile meets the blocks of keys in the same order whatever
// the unit is, so results do not depend on the number of threads.
#if defined(TANDEM_KERNELS_CPU_ATTENTION_FORWARD_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_KERNELS_CPU_ATTENTION_FORWARD_H
#undef TANDEM_KERNELS_CPU_ATTENTION_FORWARD_H
#else
#define TANDEM_KERNELS_CPU_ATTENTION_FORWARD_H
#endif

#include <omp.h>

#include <cmath>
#include <limits>
#include <memory>
#include <span>

#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/operators.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::kernels::cpu::HWY_NAMESPACE {

template <class Element>
struct ForwardProblem {
  Heads<const Element> query, key, value;
  Heads<Element> output;
  float* logSumExp = nullptr;  // [batch, heads, queries]; optional
  DocumentStarts documentStarts;
  const std::int32_t* earlierKeys = nullptr;  // [batch]: keys before the first query; none: firstQuery - firstKey
  std::int64_t firstQuery = 0, firstKey = 0;  // places in the row, as of documentStarts
  std::int64_t keys = 0;                      // of a sequence
  std::int64_t batch = 0, queries = 0, heads = 0, kvHeads = 0, headSize = 0, window = 0;
  float scale = 0;
};

// A tile of queries of one head, and what the softmax has seen of its keys so far.
struct QueryTile {
  std::int64_t head = 0, begin = 0, rows = 0;
  bool started = false;
  float* queries = nullptr;                       // packed, times scale * log2(e): scores are in powers of two
  float* output = nullptr;                        // [queryTile, panelStride]: weighted sum of values, not normalised
  float *maximum = nullptr, *sum = nullptr;       // [queryTile]
  std::int32_t *first = nullptr, *own = nullptr;  // [queryTile]: first and last visible key
  Range visible;                                  // keys that any of its queries sees
  PanelVisibility panels[queryTile / panelWidth];

  std::int64_t panelCount() const { return (rows + panelWidth - 1) / panelWidth; }
  std::int64_t panelRows(std::int64_t panel) const { return std::min(panelWidth, rows - panel * panelWidth); }
};

// What a thread packs keys, values and scores into.
struct ForwardScratch {
  ForwardScratch(Carver& carver, const HeadPadding& head)
      : keys(carver.take<float>(keyBlock * head.rowStride)),
        values(carver.take<float>(keyBlock * head.panelStride)),
        scores(carver.take<float>(keyBlock * queryTile)),
        rescale(carver.take<float>(queryTile)) {}
  float *keys, *values, *scores, *rescale;
};

inline void carveTile(Carver& carver, const HeadPadding& head, QueryTile& tile) {
  tile.queries = carver.take<float>(queryTile * head.rowStride);
  tile.output = carver.take<float>(queryTile * head.panelStride);
  tile.maximum = carver.take<float>(queryTile);
  tile.sum = carver.take<float>(queryTile);
  tile.first = carver.take<std::int32_t>(queryTile);
  tile.own = carver.take<std::int32_t>(queryTile);
}

template <class Element>
void beginTile(const ForwardProblem<Element>& problem, const HeadPadding& head, std::int64_t batch, QueryTile& tile) {
  packTransposed(problem.query.at(batch, tile.begin, tile.head), problem.query.timeStride, tile.rows, head,
                 problem.scale * log2OfE, tile.queries);
  const std::int64_t earlier =
      problem.earlierKeys == nullptr ? problem.firstQuery - problem.firstKey : problem.earlierKeys[batch];
  for (std::int64_t row = 0; row < queryTile; ++row) {
    const std::int64_t query = tile.begin + std::min(row, tile.rows - 1);  // lanes beyond the last copy it
    const KeySight sight = sightOf(earlier + query, problem.documentStarts.at(batch, query) - problem.firstKey,
                                   problem.window, problem.keys);
    tile.own[row] = sight.last;
    tile.first[row] = sight.first;
    tile.maximum[row] = -std::numeric_limits<float>::infinity();
    tile.sum[row] = 0;
  }
  tile.started = false;
  for (std::int64_t panel = 0; panel < tile.panelCount(); ++panel) {
    const std::int64_t at = panel * panelWidth;
    const PanelVisibility seen = panelVisibility(tile.first + at, tile.own + at, tile.panelRows(panel));
    tile.panels[panel] = seen;
    tile.visible.begin = panel == 0 ? seen.any.begin : std::min(tile.visible.begin, seen.any.begin);
    tile.visible.end = panel == 0 ? seen.any.end : std::max(tile.visible.end, seen.any.end);
  }
}

// One vector of queries against the keys of a block: scores become weights relative to the new maximum, and `rescale`
// what earlier sums must be multiplied by. Returns whether that is one for all queries. `keys` is the visible part of
// the block, `unmasked` the part of it that all queries of the panel see.
HWY_INLINE bool softmaxVector(const QueryTile& tile, std::int64_t row, std::int64_t blockBegin, const Range& keys,
                              const Range& unmasked, float* scores, float* rescale) {
  const Floats floats;
  const Vector nothing = set(-std::numeric_limits<float>::infinity());
  const Vector before = hn::LoadU(floats, tile.maximum + row);
  Vector maximum = before;
  const auto maskedMaximum = [&](std::int64_t begin, std::int64_t end) TANDEM_SIMD_LAMBDA {
    for (std::int64_t key = begin; key < end; ++key) {
      const auto visible = isVisible(blockBegin + key, tile.first + row, tile.own + row);
      const Vector score = hn::IfThenElse(visible, hn::LoadU(floats, scores + key * queryTile), nothing);
      hn::StoreU(score, floats, scores + key * queryTile);
      maximum = hn::Max(maximum, score);
    }
  };
  maskedMaximum(keys.begin, unmasked.begin);
  for (std::int64_t key = unmasked.begin; key < unmasked.end; ++key) {
    maximum = hn::Max(maximum, hn::LoadU(floats, scores + key * queryTile));
  }
  maskedMaximum(unmasked.end, keys.end);

  // A query that has seen nothing yet has the maximum -inf; subtracting 0 instead keeps its weights zero, not NaN.
  const Vector base = hn::IfThenElse(hn::Eq(maximum, nothing), hn::Zero(floats), maximum);
  const Vector factor = powerOf2(hn::Sub(before, base));
  Vector sum = hn::Zero(floats);
  for (std::int64_t key = keys.begin; key < keys.end; ++key) {
    const Vector weight = powerOf2(hn::Sub(hn::LoadU(floats, scores + key * queryTile), base));
    hn::StoreU(weight, floats, scores + key * queryTile);
    sum = hn::Add(sum, weight);
  }
  hn::StoreU(maximum, floats, tile.maximum + row);
  hn::StoreU(hn::MulAdd(hn::LoadU(floats, tile.sum + row), factor, sum), floats, tile.sum + row);
  hn::StoreU(factor, floats, rescale);
  return hn::AllTrue(floats, hn::Eq(factor, set(1.0f)));
}

// Scores and weights of one panel of queries. Returns whether earlier sums stay as they are.
inline bool weighPanel(const QueryTile& tile, std::int64_t panel, const HeadPadding& head, std::int64_t blockBegin,
                       const Range& keys, ForwardScratch& scratch) {
  const std::int64_t column = panel * panelWidth, columns = tile.panelRows(panel);
  const float* queries = tile.queries + column * head.size;
  for (std::int64_t key = roundDown(keys.begin, stripRows); key < keys.end; key += stripRows) {
    multiplyStrip<false>(scratch.keys + key * head.rowStride, head.rowStride, queries, head.size,
                         scratch.scores + key * queryTile + column, queryTile, columns, false);
  }
  Range unmasked = withinBlock(tile.panels[panel].all, blockBegin, keyBlock);
  unmasked.begin = std::clamp(unmasked.begin, keys.begin, keys.end);
  unmasked.end = std::clamp(unmasked.end, unmasked.begin, keys.end);
  bool unchanged = true;
  for (std::int64_t row = column; row < column + columns; row += laneCount) {
    const bool same = softmaxVector(tile, row, blockBegin, keys, unmasked, scratch.scores + row, scratch.rescale + row);
    unchanged = unchanged && same;
  }
  return unchanged;
}

inline void rescaleOutput(const QueryTile& tile, const HeadPadding& head, const float* rescale) {
  for (std::int64_t row = 0; row < tile.rows; ++row) {
    if (rescale[row] == 1.0f) continue;
    float* output = tile.output + row * head.panelStride;
    forVectors(head.size, [&](std::int64_t i, auto) TANDEM_SIMD_LAMBDA {
      hn::StoreU(hn::Mul(hn::LoadU(Floats(), output + i), set(rescale[row])), Floats(), output + i);
    });
  }
}

// output (+)= weights^T values, for the keys of `keys`; strips of queries that see a part only multiply that part.
inline void addValues(const QueryTile& tile, const HeadPadding& head, std::int64_t blockBegin, const Range& keys,
                      const ForwardScratch& scratch) {
  Range seen[queryTile / stripRows];
  for (std::int64_t row = 0; row < tile.rows; row += stripRows) {
    const std::int64_t rows = std::min(stripRows, tile.rows - row);
    const Range any = withinBlock(panelVisibility(tile.first + row, tile.own + row, rows).any, blockBegin, keyBlock);
    seen[row / stripRows] = {std::max(any.begin, keys.begin), std::min(any.end, keys.end)};
  }
  for (std::int64_t panel = 0; panel < head.panels; ++panel) {
    const std::int64_t column = panel * panelWidth;
    for (std::int64_t row = 0; row < tile.rows; row += stripRows) {
      const Range& part = seen[row / stripRows];
      if (part.empty() && tile.started) continue;
      multiplyStrip<true>(scratch.scores + part.begin * queryTile + row, queryTile,
                          scratch.values + column * keyBlock + part.begin * panelWidth,
                          std::max<std::int64_t>(0, part.end - part.begin),
                          tile.output + row * head.panelStride + column, head.panelStride, head.size - column,
                          tile.started);
    }
  }
}

// The tile against one block of packed keys and values.
inline void attendBlock(QueryTile& tile, const HeadPadding& head, std::int64_t blockBegin, ForwardScratch& scratch) {
  const Range keys = withinBlock(tile.visible, blockBegin, keyBlock);
  if (keys.empty()) return;
  bool unchanged = true;
  for (std::int64_t panel = 0; panel < tile.panelCount(); ++panel) {
    const Range part = withinBlock(tile.panels[panel].any, blockBegin, keyBlock);
    if (part.empty()) {
      std::fill_n(scratch.rescale + panel * panelWidth, panelWidth, 1.0f);
    } else {
      const bool same = weighPanel(tile, panel, head, blockBegin, part, scratch);
      unchanged = unchanged && same;
    }
    // After the scores, which come in whole strips and so reach beyond the part.
    zeroOutside(keys, part, scratch.scores + panel * panelWidth);
  }
  if (tile.started && !unchanged) rescaleOutput(tile, head, scratch.rescale);
  addValues(tile, head, blockBegin, keys, scratch);
  tile.started = true;
}

template <class Element>
void finishTile(const ForwardProblem<Element>& problem, const HeadPadding& head, std::int64_t batch,
                const QueryTile& tile) {
  for (std::int64_t row = 0; row < tile.rows; ++row) {
    if (tile.first[row] > tile.own[row]) {  // it sees no key of this piece of the row
      auto* output = problem.output.at(batch, tile.begin + row, tile.head);
      std::memset(static_cast<void*>(output), 0, static_cast<std::size_t>(head.size) * sizeof(*output));
      continue;
    }
    storeScaled(tile.output + row * head.panelStride, 1.0f / tile.sum[row], head.size,
                problem.output.at(batch, tile.begin + row, tile.head));
  }
  if (problem.logSumExp == nullptr) return;
  float* logSumExp = problem.logSumExp + (batch * problem.heads + tile.head) * problem.queries + tile.begin;
  for (std::int64_t row = 0; row < tile.rows; ++row) {
    logSumExp[row] = (tile.maximum[row] + std::log2(tile.sum[row])) * lnOf2;
  }
}

// How the queries of a (batch, kvHead) are cut into units: headsPerUnit query heads by tilesPerHead tiles.
struct ForwardPartition {
  std::int64_t headsPerUnit = 1, tilesPerHead = 1, headParts = 1, tileParts = 1, units = 1;
  std::int64_t tiles() const { return headsPerUnit * tilesPerHead; }
};

template <class Element>
ForwardPartition partitionForward(const ForwardProblem<Element>& problem, int threads) {
  constexpr std::int64_t mostTiles = 8;  // their queries and outputs stay in the second level of the cache
  const std::int64_t group = problem.heads / problem.kvHeads;
  const std::int64_t tilesOfHead = (problem.queries + queryTile - 1) / queryTile;
  ForwardPartition partition;
  partition.headsPerUnit = std::min(group, mostTiles);
  partition.headParts = (group + partition.headsPerUnit - 1) / partition.headsPerUnit;
  for (partition.tilesPerHead = std::clamp<std::int64_t>(mostTiles / partition.headsPerUnit, 1, tilesOfHead);;
       partition.tilesPerHead /= 2) {
    partition.tileParts = (tilesOfHead + partition.tilesPerHead - 1) / partition.tilesPerHead;
    partition.units = problem.batch * problem.kvHeads * partition.headParts * partition.tileParts;
    if (threads == 1 || partition.units >= 4 * threads || partition.tilesPerHead == 1) return partition;
  }
}

// The tiles of one unit through all their blocks of keys.
template <class Element>
void attendUnit(const ForwardProblem<Element>& problem, const HeadPadding& head, std::int64_t batch,
                std::int64_t kvHead, std::span<QueryTile> tiles, ForwardScratch& scratch) {
  Range visible{std::numeric_limits<std::int64_t>::max(), 0};
  for (QueryTile& tile : tiles) {
    beginTile(problem, head, batch, tile);
    visible.begin = std::min(visible.begin, tile.visible.begin);
    visible.end = std::max(visible.end, tile.visible.end);
  }
  for (std::int64_t block = roundDown(visible.begin, keyBlock); block < visible.end; block += keyBlock) {
    const std::int64_t keys = std::min(keyBlock, visible.end - block);
    packRows(problem.key.at(batch, block, kvHead), problem.key.timeStride, keys, head, scratch.keys);
    packPanels(problem.value.at(batch, block, kvHead), problem.value.timeStride, keys, head, keyBlock, scratch.values);
    for (QueryTile& tile : tiles) attendBlock(tile, head, block, scratch);
  }
  for (const QueryTile& tile : tiles) finishTile(problem, head, batch, tile);
}

// Unit number `unit`; those with the most keys come first, which evens out the threads' work.
template <class Element>
void attendUnitNumber(const ForwardProblem<Element>& problem, const ForwardPartition& partition,
                      const HeadPadding& head, std::int64_t unit, std::byte* memory) {
  const std::int64_t sequences = problem.batch * problem.kvHeads * partition.headParts;
  const std::int64_t tilePart = partition.tileParts - 1 - unit / sequences;
  const std::int64_t headPart = unit % partition.headParts;
  const std::int64_t kvHead = unit / partition.headParts % problem.kvHeads;
  const std::int64_t batch = unit % sequences / partition.headParts / problem.kvHeads;
  const std::int64_t group = problem.heads / problem.kvHeads;

  Carver carver(memory);
  ForwardScratch scratch(carver, head);
  QueryTile* tiles = carver.take<QueryTile>(partition.tiles());
  std::int64_t count = 0;
  for (std::int64_t h = headPart * partition.headsPerUnit; h < std::min(group, (headPart + 1) * partition.headsPerUnit);
       ++h) {
    for (std::int64_t t = tilePart * partition.tilesPerHead; t < (tilePart + 1) * partition.tilesPerHead; ++t) {
      if (t * queryTile >= problem.queries) break;
      QueryTile& tile = *std::construct_at(tiles + count++);
      tile.head = kvHead * group + h;
      tile.begin = t * queryTile;
      tile.rows = std::min(queryTile, problem.queries - tile.begin);
      carveTile(carver, head, tile);
    }
  }
  attendUnit(problem, head, batch, kvHead, std::span<QueryTile>(tiles, static_cast<std::size_t>(count)), scratch);
}

inline std::int64_t forwardScratchBytes(const ForwardPartition& partition, const HeadPadding& head) {
  Carver carver(nullptr);
  const ForwardScratch scratch(carver, head);
  carver.take<QueryTile>(partition.tiles());
  QueryTile tile;
  for (std::int64_t i = 0; i < partition.tiles(); ++i) carveTile(carver, head, tile);
  return carver.bytes();
}

template <class Element>
void attendForward(const ForwardProblem<Element>& problem, Context& context) {
  if (problem.batch == 0 || problem.queries == 0) return;
  const HeadPadding head(problem.headSize);
  const ForwardPartition partition = partitionForward(problem, context.threads);
  const std::int64_t bytesOfThread = roundUp(forwardScratchBytes(partition, head), 64);
  std::byte* memory = context.scratch.get(0, bytesOfThread * context.threads);
#pragma omp parallel for schedule(dynamic, 1) num_threads(context.threads)
  for (std::int64_t unit = 0; unit < partition.units; ++unit) {
    attendUnitNumber(problem, partition, head, unit, memory + bytesOfThread * omp_get_thread_num());
  }
}

}  // namespace tandem::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
