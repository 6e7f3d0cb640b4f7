// Attention, backward (Dao, FlashAttention-2, 2023): weights are computed again from the log-sum-exp of the forward
// pass,
//   D = rowsum(gradOutput * output), P = 2^(score - logSumExp), dS = P * (gradOutput value^T - D),
//   gradValue = P^T gradOutput, gradKey = scale dS^T query, gradQuery = scale dS key.
//
// A unit of work is one (batch, kvHead), whose query heads follow each other, so that sums over the group have a fixed
// order. With too few of those for the threads, the blocks of keys are dealt to several units, each with a partial
// gradQuery of its own; the parts are then added in order. The split depends on shapes and thread count alone.
#include "kernels/cpu/attention_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_backward.cpp"
#include <omp.h>

#include <limits>
#include <type_traits>

#include "hwy/foreach_target.h"
#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/operators.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::kernels::cpu::HWY_NAMESPACE {

template <class Element>
struct BackwardProblem {
  explicit BackwardProblem(const AttentionBackward& op)
      : query(headsOf<Element>(op.query)),
        key(headsOf<Element>(op.key)),
        value(headsOf<Element>(op.value)),
        output(headsOf<Element>(op.output)),
        gradOutput(headsOf<Element>(op.gradOutput)),
        gradQuery(headsOf<Element>(op.gradQuery)),
        gradKey(headsOf<Element>(op.gradKey)),
        gradValue(headsOf<Element>(op.gradValue)),
        logSumExp(static_cast<const float*>(op.logSumExp.data)),
        documentStarts(op.documentStart),
        batch(op.query.shape[0]),
        time(op.query.shape[1]),
        keys(op.key.shape[1]),
        firstQuery(op.firstQuery),
        firstKey(op.firstKey),
        heads(op.query.shape[2]),
        kvHeads(op.key.shape[2]),
        window(op.window),
        scale(op.scale) {}

  Heads<const Element> query, key, value, output, gradOutput;
  Heads<Element> gradQuery, gradKey, gradValue;
  const float* logSumExp;  // [batch, heads, time]
  DocumentStarts documentStarts;
  std::int64_t batch, time, keys, firstQuery, firstKey, heads, kvHeads, window;
  float scale;
};

// How much there is of everything in one head.
struct BackwardExtent {
  BackwardExtent(std::int64_t time_, std::int64_t keys_, std::int64_t earlier_, std::int64_t splits_)
      : time(time_),
        keys(keys_),
        earlier(earlier_),
        tiles((time_ + queryTile - 1) / queryTile),
        blocks((keys_ + keyBlock - 1) / keyBlock),
        splits(splits_),
        blocksOfSplit((blocks + splits_ - 1) / splits_) {}
  std::int64_t time, keys;  // queries, and keys
  std::int64_t earlier;     // keys before the one at the first query's place
  std::int64_t tiles, blocks, splits, blocksOfSplit;
  std::int64_t paddedTime() const { return tiles * queryTile; }
};

// What a thread packs one head into, and the gradients it sums up.
struct BackwardScratch {
  BackwardScratch(Carver& carver, const HeadPadding& head, const BackwardExtent& extent)
      : queryColumns(carver.take<float>(extent.paddedTime() * head.size)),
        gradColumns(carver.take<float>(extent.paddedTime() * head.size)),
        queryPanels(carver.take<float>(extent.paddedTime() * head.panelStride)),
        gradPanels(carver.take<float>(extent.paddedTime() * head.panelStride)),
        gradQuery(carver.take<float>(extent.paddedTime() * head.panelStride)),
        logSumExp(carver.take<float>(extent.paddedTime())),
        delta(carver.take<float>(extent.paddedTime())),
        first(carver.take<std::int32_t>(extent.paddedTime())),
        own(carver.take<std::int32_t>(extent.paddedTime())),
        keys(carver.take<float>(keyBlock * head.rowStride)),
        values(carver.take<float>(keyBlock * head.rowStride)),
        keyPanels(carver.take<float>(keyBlock * head.panelStride)),
        weights(carver.take<float>(keyBlock * queryTile)),
        gradScores(carver.take<float>(keyBlock * queryTile)),
        gradKey(carver.take<float>(extent.blocksOfSplit * keyBlock * head.panelStride)),
        gradValue(carver.take<float>(extent.blocksOfSplit * keyBlock * head.panelStride)) {}

  float *queryColumns, *gradColumns;  // queries and gradOutput transposed: what keys and values are multiplied by
  float *queryPanels, *gradPanels;    // the same by columns: what dS^T and P^T are multiplied by
  float* gradQuery;
  float *logSumExp, *delta;  // the former in powers of two
  std::int32_t *first, *own;
  float *keys, *values, *keyPanels;
  float *weights, *gradScores;  // transposed: [keyBlock, queryTile]
  float *gradKey, *gradValue;
};

template <class Element>
void packQueryHead(const BackwardProblem<Element>& problem, const HeadPadding& head, const BackwardExtent& extent,
                   std::int64_t batch, std::int64_t h, BackwardScratch& scratch) {
  for (std::int64_t begin = 0; begin < extent.time; begin += queryTile) {
    const std::int64_t rows = std::min(queryTile, extent.time - begin);
    const Element* queries = problem.query.at(batch, begin, h);
    const Element* gradients = problem.gradOutput.at(batch, begin, h);
    packTransposed(queries, problem.query.timeStride, rows, head, problem.scale * log2OfE,
                   scratch.queryColumns + begin * head.size);
    packTransposed(gradients, problem.gradOutput.timeStride, rows, head, 1.0f, scratch.gradColumns + begin * head.size);
    packPanels(queries, problem.query.timeStride, rows, head, queryTile,
               scratch.queryPanels + begin * head.panelStride);
    packPanels(gradients, problem.gradOutput.timeStride, rows, head, queryTile,
               scratch.gradPanels + begin * head.panelStride);
  }
  const float* logSumExp = problem.logSumExp + (batch * problem.heads + h) * extent.time;
  for (std::int64_t t = 0; t < extent.paddedTime(); ++t) {
    const std::int64_t query = std::min(t, extent.time - 1);
    const KeySight sight = sightOf(extent.earlier + query, problem.documentStarts.at(batch, query) - problem.firstKey,
                                   problem.window, extent.keys);
    scratch.own[t] = sight.last;
    scratch.first[t] = sight.first;
    // Lanes beyond the last query get weight 2^-inf = 0.
    scratch.logSumExp[t] = t < extent.time ? logSumExp[t] * log2OfE : std::numeric_limits<float>::infinity();
    scratch.delta[t] = t < extent.time
                           ? dotProduct(problem.gradOutput.at(batch, t, h), problem.output.at(batch, t, h), head.size)
                           : 0.0f;
  }
}

// A tile of queries against a block of keys.
struct BackwardTile {
  std::int64_t begin = 0, rows = 0;  // queries
  std::int64_t blockBegin = 0;       // keys
  Range keys;                        // the part of the block that any query sees, in whole strips
  PanelVisibility panels[queryTile / panelWidth];
  std::int64_t panelRows(std::int64_t panel) const { return std::min(panelWidth, rows - panel * panelWidth); }
};

inline BackwardTile makeTile(const BackwardScratch& scratch, std::int64_t time, std::int64_t begin,
                             std::int64_t blockBegin) {
  BackwardTile tile;
  tile.begin = begin;
  tile.rows = std::min(queryTile, time - begin);
  tile.blockBegin = blockBegin;
  tile.keys = {keyBlock, 0};
  for (std::int64_t panel = 0; panel * panelWidth < tile.rows; ++panel) {
    const std::int64_t at = begin + panel * panelWidth;
    const PanelVisibility seen = panelVisibility(scratch.first + at, scratch.own + at, tile.panelRows(panel));
    tile.panels[panel] = {withinBlock(seen.any, blockBegin, keyBlock), withinBlock(seen.all, blockBegin, keyBlock)};
    if (tile.panels[panel].any.empty()) continue;
    tile.keys.begin = std::min(tile.keys.begin, roundDown(tile.panels[panel].any.begin, stripRows));
    tile.keys.end = std::max(tile.keys.end, roundUp(tile.panels[panel].any.end, stripRows));
  }
  return tile;
}

// Scores become weights P, and products with gradOutput become dS, for one vector of queries.
HWY_INLINE void differentiateVector(const BackwardTile& tile, const BackwardScratch& scratch, std::int64_t row,
                                    const PanelVisibility& seen) {
  const Floats floats;
  const std::int64_t query = tile.begin + row;
  const Vector logSumExp = hn::LoadU(floats, scratch.logSumExp + query);
  const Vector delta = hn::LoadU(floats, scratch.delta + query);
  const auto differentiate = [&](std::int64_t begin, std::int64_t end, auto masked) TANDEM_SIMD_LAMBDA {
    for (std::int64_t key = begin; key < end; ++key) {
      float* weightPlace = scratch.weights + key * queryTile + row;
      float* gradPlace = scratch.gradScores + key * queryTile + row;
      Vector weight = powerOf2(hn::Sub(hn::LoadU(floats, weightPlace), logSumExp));
      Vector gradScore = hn::Mul(weight, hn::Sub(hn::LoadU(floats, gradPlace), delta));
      if constexpr (decltype(masked)::value) {
        const auto visible = isVisible(tile.blockBegin + key, scratch.first + query, scratch.own + query);
        weight = hn::IfThenElseZero(visible, weight);
        gradScore = hn::IfThenElseZero(visible, gradScore);
      }
      hn::StoreU(weight, floats, weightPlace);
      hn::StoreU(gradScore, floats, gradPlace);
    }
  };
  const std::int64_t allBegin = std::clamp(seen.all.begin, seen.any.begin, seen.any.end);
  const std::int64_t allEnd = std::clamp(seen.all.end, allBegin, seen.any.end);
  differentiate(seen.any.begin, allBegin, std::true_type());
  differentiate(allBegin, allEnd, std::false_type());
  differentiate(allEnd, seen.any.end, std::true_type());
}

// P^T and dS^T of the tile, zero where a query does not see a key.
inline void computeScores(const BackwardTile& tile, const HeadPadding& head, const BackwardScratch& scratch) {
  for (std::int64_t column = 0; column < tile.rows; column += panelWidth) {
    const PanelVisibility& seen = tile.panels[column / panelWidth];
    const std::int64_t at = (tile.begin + column) * head.size, columns = tile.panelRows(column / panelWidth);
    if (!seen.any.empty()) {
      for (std::int64_t key = roundDown(seen.any.begin, stripRows); key < seen.any.end; key += stripRows) {
        multiplyStrip<false>(scratch.keys + key * head.rowStride, head.rowStride, scratch.queryColumns + at, head.size,
                             scratch.weights + key * queryTile + column, queryTile, columns, false);
        multiplyStrip<false>(scratch.values + key * head.rowStride, head.rowStride, scratch.gradColumns + at, head.size,
                             scratch.gradScores + key * queryTile + column, queryTile, columns, false);
      }
      for (std::int64_t row = column; row < column + columns; row += laneCount) {
        differentiateVector(tile, scratch, row, seen);
      }
    }
    zeroOutside(tile.keys, seen.any, scratch.weights + column);
    zeroOutside(tile.keys, seen.any, scratch.gradScores + column);
  }
}

// gradKey += dS^T query and gradValue += P^T gradOutput; a strip of keys is met by no query before it.
inline void addKeyGradients(const BackwardTile& tile, const HeadPadding& head, const BackwardScratch& scratch,
                            std::int64_t earlier, float* gradKey, float* gradValue) {
  for (std::int64_t panel = 0; panel < head.panels; ++panel) {
    const std::int64_t column = panel * panelWidth, columns = head.size - column;
    const float* queries = scratch.queryPanels + tile.begin * head.panelStride + column * queryTile;
    const float* gradients = scratch.gradPanels + tile.begin * head.panelStride + column * queryTile;
    for (std::int64_t key = tile.keys.begin; key < tile.keys.end; key += stripRows) {
      const std::int64_t skipped = std::max<std::int64_t>(0, tile.blockBegin + key - earlier - tile.begin);
      if (skipped >= tile.rows) break;
      const std::int64_t scoresAt = key * queryTile + skipped, place = key * head.panelStride + column;
      multiplyStrip<false>(scratch.gradScores + scoresAt, queryTile, queries + skipped * panelWidth,
                           tile.rows - skipped, gradKey + place, head.panelStride, columns, true);
      multiplyStrip<false>(scratch.weights + scoresAt, queryTile, gradients + skipped * panelWidth, tile.rows - skipped,
                           gradValue + place, head.panelStride, columns, true);
    }
  }
}

// gradQuery += dS key; a strip of queries meets no key after it.
inline void addQueryGradients(const BackwardTile& tile, const HeadPadding& head, const BackwardScratch& scratch) {
  for (std::int64_t panel = 0; panel < head.panels; ++panel) {
    const std::int64_t column = panel * panelWidth;
    const float* keys = scratch.keyPanels + column * keyBlock + tile.keys.begin * panelWidth;
    for (std::int64_t row = 0; row < tile.rows; row += stripRows) {
      const std::int64_t lastOwn = scratch.own[tile.begin + std::min(row + stripRows, tile.rows) - 1];
      const std::int64_t end = std::min(tile.keys.end, lastOwn + 1 - tile.blockBegin);
      if (end <= tile.keys.begin) continue;
      multiplyStrip<true>(scratch.gradScores + tile.keys.begin * queryTile + row, queryTile, keys,
                          end - tile.keys.begin, scratch.gradQuery + (tile.begin + row) * head.panelStride + column,
                          head.panelStride, head.size - column, true);
    }
  }
}

// One query head through all blocks of keys of one split.
template <class Element>
void differentiateHead(const BackwardProblem<Element>& problem, const HeadPadding& head, const BackwardExtent& extent,
                       std::int64_t batch, std::int64_t kvHead, std::int64_t split, BackwardScratch& scratch) {
  for (std::int64_t block = split; block < extent.blocks; block += extent.splits) {
    const std::int64_t blockBegin = block * keyBlock, keys = std::min(keyBlock, extent.keys - blockBegin);
    const Element* keyRows = problem.key.at(batch, blockBegin, kvHead);
    packRows(keyRows, problem.key.timeStride, keys, head, scratch.keys);
    packPanels(keyRows, problem.key.timeStride, keys, head, keyBlock, scratch.keyPanels);
    packRows(problem.value.at(batch, blockBegin, kvHead), problem.value.timeStride, keys, head, scratch.values);
    const std::int64_t gradAt = block / extent.splits * keyBlock * head.panelStride;
    const std::int64_t firstQuery = std::max<std::int64_t>(0, blockBegin - extent.earlier);  // that sees the block
    for (std::int64_t begin = roundDown(firstQuery, queryTile); begin < extent.time; begin += queryTile) {
      const BackwardTile tile = makeTile(scratch, extent.time, begin, blockBegin);
      if (tile.keys.empty()) continue;
      computeScores(tile, head, scratch);
      addKeyGradients(tile, head, scratch, extent.earlier, scratch.gradKey + gradAt, scratch.gradValue + gradAt);
      addQueryGradients(tile, head, scratch);
    }
  }
}

template <class Element>
void storeKeyGradients(const BackwardProblem<Element>& problem, const HeadPadding& head, const BackwardExtent& extent,
                       std::int64_t batch, std::int64_t kvHead, std::int64_t split, const BackwardScratch& scratch) {
  for (std::int64_t block = split; block < extent.blocks; block += extent.splits) {
    for (std::int64_t t = block * keyBlock; t < std::min(extent.keys, (block + 1) * keyBlock); ++t) {
      const std::int64_t at = (block / extent.splits * keyBlock + t - block * keyBlock) * head.panelStride;
      storeScaled(scratch.gradKey + at, problem.scale, head.size, problem.gradKey.at(batch, t, kvHead));
      storeScaled(scratch.gradValue + at, 1.0f, head.size, problem.gradValue.at(batch, t, kvHead));
    }
  }
}

// One (batch, kvHead) and split. `partial` takes gradQuery, [group][paddedTime][panelStride], when there are several
// splits; otherwise it goes straight to its place.
template <class Element>
void differentiateUnit(const BackwardProblem<Element>& problem, const HeadPadding& head, const BackwardExtent& extent,
                       std::int64_t batch, std::int64_t kvHead, std::int64_t split, BackwardScratch scratch,
                       float* partial) {
  const std::int64_t gradQueryCount = extent.paddedTime() * head.panelStride;
  const std::int64_t gradKeyCount = extent.blocksOfSplit * keyBlock * head.panelStride;
  std::fill_n(scratch.gradKey, gradKeyCount, 0.0f);
  std::fill_n(scratch.gradValue, gradKeyCount, 0.0f);
  const std::int64_t group = problem.heads / problem.kvHeads;
  for (std::int64_t h = kvHead * group; h < (kvHead + 1) * group; ++h) {
    packQueryHead(problem, head, extent, batch, h, scratch);
    if (partial != nullptr) scratch.gradQuery = partial + (h - kvHead * group) * gradQueryCount;
    std::fill_n(scratch.gradQuery, gradQueryCount, 0.0f);
    differentiateHead(problem, head, extent, batch, kvHead, split, scratch);
    for (std::int64_t t = 0; partial == nullptr && t < extent.time; ++t) {
      storeScaled(scratch.gradQuery + t * head.panelStride, problem.scale, head.size,
                  problem.gradQuery.at(batch, t, h));
    }
  }
  storeKeyGradients(problem, head, extent, batch, kvHead, split, scratch);
}

// Splits of the blocks of keys: one when the units alone occupy the threads evenly.
template <class Element>
std::int64_t splitsOf(const BackwardProblem<Element>& problem, int threads) {
  const std::int64_t units = problem.batch * problem.kvHeads, blocks = (problem.keys + keyBlock - 1) / keyBlock;
  if (units % threads == 0 || units >= 8 * threads) return 1;
  return std::min(blocks, (4 * threads + units - 1) / units);
}

// gradQuery = scale * the partial ones, added in order; partials is [unit][split][group][paddedTime][panelStride].
template <class Element>
void addPartialQueryGradients(const BackwardProblem<Element>& problem, const HeadPadding& head,
                              const BackwardExtent& extent, int threads, float* partials) {
  const std::int64_t group = problem.heads / problem.kvHeads;
  const std::int64_t headCount = extent.paddedTime() * head.panelStride;
#pragma omp parallel for schedule(static) num_threads(threads) collapse(2)
  for (std::int64_t sequence = 0; sequence < problem.batch * problem.heads; ++sequence) {
    for (std::int64_t t = 0; t < extent.time; ++t) {
      const std::int64_t batch = sequence / problem.heads, h = sequence % problem.heads;
      float* sum = partials + (sequence / group * extent.splits * group + h % group) * headCount + t * head.panelStride;
      for (std::int64_t split = 1; split < extent.splits; ++split) {
        const float* part = sum + split * group * headCount;
        forVectors(head.size, [&](std::int64_t i, auto extentOfVector) TANDEM_SIMD_LAMBDA {
          store(hn::Add(load(sum + i, extentOfVector), load(part + i, extentOfVector)), sum + i, extentOfVector);
        });
      }
      storeScaled(sum, problem.scale, head.size, problem.gradQuery.at(batch, t, h));
    }
  }
}

template <class Element>
void differentiate(const BackwardProblem<Element>& problem, const HeadPadding& head, Context& context) {
  if (problem.batch == 0 || problem.time == 0) return;
  const BackwardExtent extent(problem.time, problem.keys, problem.firstQuery - problem.firstKey,
                              splitsOf(problem, context.threads));
  const std::int64_t group = problem.heads / problem.kvHeads, units = problem.batch * problem.kvHeads * extent.splits;
  Carver counter(nullptr);
  const BackwardScratch counted(counter, head, extent);
  const std::int64_t bytesOfThread = counter.bytes();
  std::byte* memory = context.scratch.get(0, bytesOfThread * context.threads);
  const std::int64_t partialCount = group * extent.paddedTime() * head.panelStride;
  float* partials = nullptr;
  if (extent.splits > 1) {
    const std::int64_t bytes = units * partialCount * static_cast<std::int64_t>(sizeof(float));
    partials = reinterpret_cast<float*>(context.scratch.get(1, bytes));
  }
#pragma omp parallel for schedule(dynamic, 1) num_threads(context.threads)
  for (std::int64_t unit = 0; unit < units; ++unit) {
    Carver carver(memory + bytesOfThread * omp_get_thread_num());
    const std::int64_t sequence = unit / extent.splits;
    differentiateUnit(problem, head, extent, sequence / problem.kvHeads, sequence % problem.kvHeads,
                      unit % extent.splits, BackwardScratch(carver, head, extent),
                      partials == nullptr ? nullptr : partials + unit * partialCount);
  }
  if (partials != nullptr) addPartialQueryGradients(problem, head, extent, context.threads, partials);
}

void runAttentionBackward(const AttentionBackward& op, Context& context) {
  withElement(op.query.type, [&](auto* element) {
    using Element = std::remove_pointer_t<decltype(element)>;
    differentiate(BackwardProblem<Element>(op), HeadPadding(op.query.shape[3]), context);
  });
}

}  // namespace tandem::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::kernels::cpu {

HWY_EXPORT(runAttentionBackward);
void run(const AttentionBackward& op, Context& context) { HWY_DYNAMIC_DISPATCH(runAttentionBackward)(op, context); }

}  // namespace tandem::kernels::cpu
#endif
