// Attention of new tokens over the cache of earlier ones.
//
// Many new tokens (a prompt) go through the flash kernel with the cache as keys and values. Few (decoding) are bound by
// reading the cache: each (sequence, kvHead, chunk of keys) is a unit, which gives a partial softmax, and the chunks
// are then combined in order. The length of a chunk is fixed, so results do not depend on the number of threads.
//
// Of a cache in 8 bits, codes become numbers in scratch: for a prompt all that it sees, in decoding the rows of a step,
// which stay in the first level of the processor's caches.
#include "kernels/cpu/attention_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cached_attention.cpp"
#include <omp.h>

#include <cstring>
#include <limits>
#include <type_traits>

#include "hwy/foreach_target.h"
#include "kernels/cpu/attention_forward.h"
#include "kernels/quantised_cache.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::kernels::cpu::HWY_NAMESPACE {

constexpr std::int64_t chunkKeys = 512;
constexpr std::int64_t stepKeys = 64;          // of a chunk, which all queries go through before the next
constexpr std::int64_t mostDecodedTokens = 4;  // of a sequence in one call; more go through the flash kernel

// `Element` of queries and outputs, `Cached` of the caches: the same, or int8 (quantised_cache.h).
template <class Element, class Cached = Element>
struct CachedProblem {
  explicit CachedProblem(const CachedAttention& op)
      : query(headsOf<Element>(op.query)),
        key(headsOf<Element>(op.key)),
        value(headsOf<Element>(op.value)),
        keyCache{elements<Cached>(op.keyCache), op.keyCache.strides[0], op.keyCache.strides[2], op.keyCache.strides[1]},
        valueCache{elements<Cached>(op.valueCache), op.valueCache.strides[0], op.valueCache.strides[2],
                   op.valueCache.strides[1]},
        output(headsOf<Element>(op.output)),
        lengths(static_cast<const std::int32_t*>(op.lengths.data)),
        batch(op.query.shape[0]),
        fresh(op.query.shape[1]),
        heads(op.query.shape[2]),
        kvHeads(op.key.shape[2]),
        headSize(op.query.shape[3]),
        window(op.window),
        scale(op.scale) {
    for (std::int64_t b = 0; b < batch; ++b) {
      TANDEM_ASSERT(lengths[b] >= 0 && lengths[b] + fresh <= op.keyCache.shape[2],
                    "sequence " + std::to_string(b) + " outgrows the cache");
      longest = std::max(longest, lengths[b] + fresh);
    }
    chunks = (longest + chunkKeys - 1) / chunkKeys;
  }

  std::int64_t group() const { return heads / kvHeads; }
  // Keys that new token `token` of a sequence sees.
  Range visible(std::int64_t b, std::int64_t token) const {
    const std::int64_t own = lengths[b] + token;
    return {sightOf(own, 0, window, own + 1).first, own + 1};
  }

  Heads<const Element> query, key, value;
  Heads<Cached> keyCache, valueCache;
  Heads<Element> output;
  const std::int32_t* lengths;
  std::int64_t batch, fresh, heads, kvHeads, headSize, window;
  float scale;
  std::int64_t longest = 0;  // of the sequences, new tokens included
  std::int64_t chunks = 0;   // of that one
};

// Writes a row of a cache.
template <class Element>
void storeRow(const Element* from, std::int64_t size, Element* row) {
  std::memcpy(row, from, static_cast<std::size_t>(size) * sizeof(Element));
}
template <class Element>
void storeRow(const Element* from, std::int64_t size, std::int8_t* row) {
  float largest = 0;
  for (std::int64_t i = 0; i < size; ++i) largest = std::max(largest, std::abs(static_cast<float>(from[i])));
  const float scale = largest / largestCacheCode, inverse = scale > 0 ? 1 / scale : 0.0f;
  std::memcpy(row, &scale, sizeof scale);
  for (std::int64_t i = 0; i < size; ++i) {
    const float code = std::nearbyint(static_cast<float>(from[i]) * inverse);
    row[cacheScaleBytes + i] = static_cast<std::int8_t>(std::clamp(code, -largestCacheCode, largestCacheCode));
  }
}

// The numbers that a row of codes stands for.
template <class Element>
void loadRow(const std::int8_t* row, std::int64_t size, Element* to) {
  float scale = 0;
  std::memcpy(&scale, row, sizeof scale);
  for (std::int64_t i = 0; i < size; ++i) to[i] = Element(scale * static_cast<float>(row[cacheScaleBytes + i]));
}

template <class Element, class Cached>
void extendCaches(const CachedProblem<Element, Cached>& problem, int threads) {
  const std::int64_t sequences = problem.batch * problem.kvHeads;
#pragma omp parallel for schedule(static) num_threads(threads) if (problem.fresh > mostDecodedTokens)
  for (std::int64_t sequence = 0; sequence < sequences; ++sequence) {
    const std::int64_t b = sequence / problem.kvHeads, h = sequence % problem.kvHeads;
    for (std::int64_t token = 0; token < problem.fresh; ++token) {
      const std::int64_t place = problem.lengths[b] + token;
      storeRow(problem.key.at(b, token, h), problem.headSize, problem.keyCache.at(b, place, h));
      storeRow(problem.value.at(b, token, h), problem.headSize, problem.valueCache.at(b, place, h));
    }
  }
}

// A cache as numbers, [batch, time, kvHeads, headSize]: itself, or what its codes stand for, in a slot of the scratch.
template <class Element>
Heads<const Element> numbersOf(const CachedProblem<Element>&, const Heads<Element>& cache, int, Context&) {
  return {cache.data, cache.batchStride, cache.timeStride, cache.headStride};
}
template <class Element>
Heads<const Element> numbersOf(const CachedProblem<Element, std::int8_t>& problem, const Heads<std::int8_t>& cache,
                               int slot, Context& context) {
  const std::int64_t sequences = problem.batch * problem.kvHeads, size = problem.headSize;
  auto* const numbers = reinterpret_cast<Element*>(
      context.scratch.get(slot, sequences * problem.longest * size * static_cast<std::int64_t>(sizeof(Element))));
#pragma omp parallel for schedule(static) num_threads(context.threads)
  for (std::int64_t sequence = 0; sequence < sequences; ++sequence) {
    const std::int64_t b = sequence / problem.kvHeads, h = sequence % problem.kvHeads;
    for (std::int64_t place = 0; place < problem.lengths[b] + problem.fresh; ++place) {
      loadRow(cache.at(b, place, h), size, numbers + (sequence * problem.longest + place) * size);
    }
  }
  return {numbers, problem.kvHeads * problem.longest * size, size, problem.longest * size};
}

template <class Element, class Cached>
void prefill(const CachedProblem<Element, Cached>& problem, Context& context) {
  ForwardProblem<Element> forward;
  forward.query = problem.query;
  forward.key = numbersOf(problem, problem.keyCache, 2, context);
  forward.value = numbersOf(problem, problem.valueCache, 3, context);
  forward.output = problem.output;
  forward.earlierKeys = problem.lengths;
  forward.batch = problem.batch;
  forward.queries = problem.fresh;
  forward.keys = problem.longest;
  forward.heads = problem.heads;
  forward.kvHeads = problem.kvHeads;
  forward.headSize = problem.headSize;
  forward.window = problem.window;
  forward.scale = problem.scale;
  attendForward(forward, context);
}

// The softmax of one query over one chunk: the largest score (in powers of two), the sum of weights relative to it, and
// the weighted sum of values.
struct PartialSoftmax {
  float *maximum, *sum, *output;
};

// Where those of a call lie: [batch, fresh, heads, chunks], each of `stride` floats.
struct Partials {
  float* data;
  std::int64_t stride;
  template <class Problem>
  PartialSoftmax at(const Problem& problem, std::int64_t b, std::int64_t token, std::int64_t h,
                    std::int64_t chunk) const {
    const std::int64_t index = ((b * problem.fresh + token) * problem.heads + h) * problem.chunks + chunk;
    float* place = data + index * stride;
    return {place, place + 1, place + laneCount * 2};
  }
};

// The sums of the lanes of four vectors.
HWY_INLINE void storeLaneSums(Vector a, Vector b, Vector c, Vector d, float* sums) {
#if HWY_TARGET == HWY_SCALAR
  sums[0] = hn::GetLane(a), sums[1] = hn::GetLane(b), sums[2] = hn::GetLane(c), sums[3] = hn::GetLane(d);
#else
  const Floats floats;
  // Within blocks of four lanes: (a0 + a2, b0 + b2, a1 + a3, b1 + b3), then (a, b, c, d); at last over the blocks.
  const hn::Repartition<double, Floats> pairs;
  const auto ab = hn::BitCast(pairs, hn::Add(hn::InterleaveLower(floats, a, b), hn::InterleaveUpper(floats, a, b)));
  const auto cd = hn::BitCast(pairs, hn::Add(hn::InterleaveLower(floats, c, d), hn::InterleaveUpper(floats, c, d)));
  const Vector blocks = hn::Add(hn::BitCast(floats, hn::InterleaveLower(pairs, ab, cd)),
                                hn::BitCast(floats, hn::InterleaveUpper(pairs, ab, cd)));
  HWY_ALIGN float buffer[laneCount];
  hn::Store(blocks, floats, buffer);
  const Quad quad;
  auto total = hn::Load(quad, buffer);
  for (std::int64_t lane = 4; lane < laneCount; lane += 4) total = hn::Add(total, hn::Load(quad, buffer + lane));
  hn::StoreU(total, quad, sums);
#endif
}

template <class Element>
void scoreKeys(const float* query, const Element* keys, std::int64_t keyStride, std::int64_t count,
               std::int64_t headSize, float* scores) {
  std::int64_t s = 0;
  for (; s + 4 <= count; s += 4) {
    const Element* key = keys + s * keyStride;
    Vector sum0 = hn::Zero(Floats()), sum1 = sum0, sum2 = sum0, sum3 = sum0;
    forVectors(headSize, [&](std::int64_t i, auto extent) TANDEM_SIMD_LAMBDA {
      const Vector part = load(query + i, extent);
      sum0 = hn::MulAdd(part, load(key + i, extent), sum0);
      sum1 = hn::MulAdd(part, load(key + keyStride + i, extent), sum1);
      sum2 = hn::MulAdd(part, load(key + 2 * keyStride + i, extent), sum2);
      sum3 = hn::MulAdd(part, load(key + 3 * keyStride + i, extent), sum3);
    });
    storeLaneSums(sum0, sum1, sum2, sum3, scores + s);
  }
  for (; s < count; ++s) scores[s] = dotProduct(query, keys + s * keyStride, headSize);
}

// Scores become weights relative to the largest. `scores` has room for a whole vector.
inline void weighScores(float* scores, std::int64_t count, const PartialSoftmax& result) {
  const Floats floats;
  std::fill_n(scores + count, roundUp(count, laneCount) - count, -std::numeric_limits<float>::infinity());
  Vector largest = hn::LoadU(floats, scores);
  for (std::int64_t s = laneCount; s < count; s += laneCount) {
    largest = hn::Max(largest, hn::LoadU(floats, scores + s));
  }
  *result.maximum = hn::GetLane(hn::MaxOfLanes(floats, largest));
  const Vector base = set(*result.maximum);
  Vector sum = hn::Zero(floats);
  for (std::int64_t s = 0; s < count; s += laneCount) {
    const Vector weight = powerOf2(hn::Sub(hn::LoadU(floats, scores + s), base));
    hn::StoreU(weight, floats, scores + s);
    sum = hn::Add(sum, weight);
  }
  *result.sum = hn::GetLane(hn::SumOfLanes(floats, sum));
}

// output, some vectors of it, += weights^T values
template <std::size_t... kVectors, class Element>
HWY_INLINE void sumValueVectors(std::index_sequence<kVectors...>, const float* weights, const Element* values,
                                std::int64_t valueStride, std::int64_t count, float* output) {
  const Floats floats;
  Vector sums[sizeof...(kVectors)] = {hn::LoadU(floats, output + static_cast<std::int64_t>(kVectors) * laneCount)...};
  for (std::int64_t s = 0; s < count; ++s) {
    const Vector weight = set(weights[s]);
    const Element* value = values + s * valueStride;
    ((sums[kVectors] =
          hn::MulAdd(weight, load(value + static_cast<std::int64_t>(kVectors) * laneCount, Whole{}), sums[kVectors])),
     ...);
  }
  (hn::StoreU(sums[kVectors], floats, output + static_cast<std::int64_t>(kVectors) * laneCount), ...);
}

template <class Element>
void sumValues(const float* weights, const Element* values, std::int64_t valueStride, std::int64_t count,
               std::int64_t headSize, float* output) {
  std::int64_t i = 0;
  for (; i + 8 * laneCount <= headSize; i += 8 * laneCount) {
    sumValueVectors(std::make_index_sequence<8>(), weights, values + i, valueStride, count, output + i);
  }
  for (; i + 2 * laneCount <= headSize; i += 2 * laneCount) {
    sumValueVectors(std::make_index_sequence<2>(), weights, values + i, valueStride, count, output + i);
  }
  forVectors(headSize - i, [&](std::int64_t j, auto extent) TANDEM_SIMD_LAMBDA {
    Vector sum = load(output + i + j, extent);
    for (std::int64_t s = 0; s < count; ++s) {
      sum = hn::MulAdd(set(weights[s]), load(values + s * valueStride + i + j, extent), sum);
    }
    store(sum, output + i + j, extent);
  });
}

// What a thread holds of the queries that share a key head: packed, times scale * log2(e), and their scores of a chunk;
// and the rows of a step of a cache in 8 bits.
struct DecodeScratch {
  template <class Problem>
  DecodeScratch(Carver& carver, const Problem& problem)
      : queryStride(roundUp(problem.headSize, laneCount)),
        queries(carver.take<float>(problem.fresh * problem.group() * queryStride)),
        scores(carver.take<float>(problem.fresh * problem.group() * scoreStride)),
        rows(carver.take<float>(stepKeys * queryStride)) {}
  static constexpr std::int64_t scoreStride = chunkKeys + laneCount;
  std::int64_t queryStride;
  float *queries, *scores, *rows;
};

// Rows of a cache at neighbouring places, as numbers.
template <class Element>
struct Rows {
  const Element* first;
  std::int64_t firstPlace, stride;
  const Element* at(std::int64_t place) const { return first + (place - firstPlace) * stride; }
};
template <class Element>
Rows<Element> rowsOf(const Heads<Element>& cache, std::int64_t b, std::int64_t head, const Range& places, std::int64_t,
                     const DecodeScratch&) {
  return {cache.at(b, places.begin, head), places.begin, cache.timeStride};
}
inline Rows<float> rowsOf(const Heads<std::int8_t>& cache, std::int64_t b, std::int64_t head, const Range& places,
                          std::int64_t size, const DecodeScratch& scratch) {
  const std::int64_t stride = scratch.queryStride;
  for (std::int64_t place = places.begin; place < places.end; ++place) {
    loadRow(cache.at(b, place, head), size, scratch.rows + (place - places.begin) * stride);
  }
  return {scratch.rows, places.begin, stride};
}

// All new tokens and query heads of one (sequence, kvHead) over one chunk of its keys. Keys and values are gone through
// in short steps, each for all queries, so that they are read from memory once.
template <class Element, class Cached>
void decodeChunk(const CachedProblem<Element, Cached>& problem, std::int64_t b, std::int64_t kvHead, std::int64_t chunk,
                 const Partials& partials, const DecodeScratch& scratch) {
  const std::int64_t chunkBegin = chunk * chunkKeys, size = problem.headSize;
  const Range whole{std::max(problem.visible(b, 0).begin, chunkBegin),
                    std::min(problem.visible(b, problem.fresh - 1).end, chunkBegin + chunkKeys)};
  // body(row, keys, scores, result) for each query, with the keys that it sees of a range and their scores.
  const auto forQueries = [&](const Range& range, const auto& body) {
    for (std::int64_t row = 0; row < problem.fresh * problem.group(); ++row) {
      const Range visible = problem.visible(b, row / problem.group());
      const Range keys{std::max(visible.begin, range.begin), std::min(visible.end, range.end)};
      if (keys.empty()) continue;
      const PartialSoftmax result =
          partials.at(problem, b, row / problem.group(), kvHead * problem.group() + row % problem.group(), chunk);
      body(row, keys, scratch.scores + row * scratch.scoreStride + keys.begin - chunkBegin, result);
    }
  };
  // The same step by step, with the rows of a cache.
  const auto forSteps = [&](const Heads<Cached>& cache, const auto& body) {
    for (std::int64_t begin = whole.begin; begin < whole.end; begin += stepKeys) {
      const Range step{begin, std::min(whole.end, begin + stepKeys)};
      const auto rows = rowsOf(cache, b, kvHead, step, size, scratch);
      forQueries(step, [&](std::int64_t row, const Range& keys, float* scores, const PartialSoftmax& result) {
        body(row, keys, scores, result, rows);
      });
    }
  };
  for (std::int64_t row = 0; row < problem.fresh * problem.group(); ++row) {
    const std::int64_t head = kvHead * problem.group() + row % problem.group();
    storeScaled(problem.query.at(b, row / problem.group(), head), problem.scale * log2OfE, size,
                scratch.queries + row * scratch.queryStride);
  }
  forSteps(problem.keyCache,
           [&](std::int64_t row, const Range& keys, float* scores, const PartialSoftmax&, const auto& rows) {
             scoreKeys(scratch.queries + row * scratch.queryStride, rows.at(keys.begin), rows.stride,
                       keys.end - keys.begin, size, scores);
           });
  forQueries(whole, [&](std::int64_t, const Range& keys, float* scores, const PartialSoftmax& result) {
    weighScores(scores, keys.end - keys.begin, result);
    std::fill_n(result.output, size, 0.0f);
  });
  forSteps(problem.valueCache,
           [&](std::int64_t, const Range& keys, const float* weights, const PartialSoftmax& result, const auto& rows) {
             sumValues(weights, rows.at(keys.begin), rows.stride, keys.end - keys.begin, size, result.output);
           });
}

// The chunks of one query put together, relative to the largest score of all.
template <class Problem>
void combineChunks(const Problem& problem, std::int64_t b, std::int64_t token, std::int64_t h,
                   const Partials& partials) {
  const Range visible = problem.visible(b, token);
  const std::int64_t firstChunk = visible.begin / chunkKeys, lastChunk = (visible.end - 1) / chunkKeys;
  const PartialSoftmax total = partials.at(problem, b, token, h, firstChunk);
  for (std::int64_t chunk = firstChunk + 1; chunk <= lastChunk; ++chunk) {
    const PartialSoftmax part = partials.at(problem, b, token, h, chunk);
    const float maximum = std::max(*total.maximum, *part.maximum);
    const float totalFactor = std::exp2(*total.maximum - maximum), partFactor = std::exp2(*part.maximum - maximum);
    *total.maximum = maximum;
    *total.sum = *total.sum * totalFactor + *part.sum * partFactor;
    for (std::int64_t i = 0; i < problem.headSize; ++i) {
      total.output[i] = total.output[i] * totalFactor + part.output[i] * partFactor;
    }
  }
  storeScaled(total.output, 1.0f / *total.sum, problem.headSize, problem.output.at(b, token, h));
}

template <class Problem>
void decode(const Problem& problem, Context& context) {
  const std::int64_t queries = problem.batch * problem.fresh * problem.heads;
  const std::int64_t stride = 2 * laneCount + roundUp(problem.headSize, laneCount);
  const std::int64_t partialBytes = queries * problem.chunks * stride * static_cast<std::int64_t>(sizeof(float));
  const Partials partials{reinterpret_cast<float*>(context.scratch.get(1, partialBytes)), stride};
  Carver counter(nullptr);
  const DecodeScratch counted(counter, problem);
  const std::int64_t bytesOfThread = counter.bytes();
  std::byte* memory = context.scratch.get(0, bytesOfThread * context.threads);
  const std::int64_t units = problem.batch * problem.kvHeads * problem.chunks;
#pragma omp parallel num_threads(context.threads)
  {
    Carver carver(memory + bytesOfThread * omp_get_thread_num());
    const DecodeScratch scratch(carver, problem);
#pragma omp for schedule(dynamic, 1)
    for (std::int64_t unit = 0; unit < units; ++unit) {
      const std::int64_t sequence = unit / problem.chunks;
      decodeChunk(problem, sequence / problem.kvHeads, sequence % problem.kvHeads, unit % problem.chunks, partials,
                  scratch);
    }
#pragma omp for schedule(static)
    for (std::int64_t index = 0; index < queries; ++index) {
      const std::int64_t row = index / problem.heads;
      combineChunks(problem, row / problem.fresh, row % problem.fresh, index % problem.heads, partials);
    }
  }
}

template <class Problem>
void attend(const Problem& problem, Context& context) {
  if (problem.batch == 0 || problem.fresh == 0) return;
  extendCaches(problem, context.threads);
  if (problem.fresh > mostDecodedTokens) {
    prefill(problem, context);
  } else {
    decode(problem, context);
  }
}

void runCachedAttention(const CachedAttention& op, Context& context) {
  withElement(op.query.type, [&](auto* element) {
    using Element = std::remove_pointer_t<decltype(element)>;
    if (op.keyCache.type == DType::i8) {
      attend(CachedProblem<Element, std::int8_t>(op), context);
    } else {
      attend(CachedProblem<Element>(op), context);
    }
  });
}

}  // namespace tandem::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::kernels::cpu {

HWY_EXPORT(runCachedAttention);
void run(const CachedAttention& op, Context& context) { HWY_DYNAMIC_DISPATCH(runCachedAttention)(op, context); }

}  // namespace tandem::kernels::cpu
#endif
