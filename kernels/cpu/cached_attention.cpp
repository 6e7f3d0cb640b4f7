// Attention of new tokens over the cache of earlier ones.
//
// Many new tokens (a prompt) go through the flash kernel with the cache as keys and values. Few (decoding) are bound by
// reading the cache: each (sequence, kvHead, chunk of keys) is a unit, which gives a partial softmax, and the chunks
// are then combined in order. The length of a chunk is fixed, so results do not depend on the number of threads.
#include "kernels/cpu/attention_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cached_attention.cpp"
#include <omp.h>

#include <cstring>
#include <limits>
#include <type_traits>

#include "hwy/foreach_target.h"
#include "kernels/cpu/attention_forward.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::kernels::cpu::HWY_NAMESPACE {

constexpr std::int64_t chunkKeys = 512;
constexpr std::int64_t mostDecodedTokens = 4;  // of a sequence in one call; more go through the flash kernel

template <class Element>
struct CachedProblem {
  explicit CachedProblem(const CachedAttention& op)
      : query(headsOf<Element>(op.query)),
        key(headsOf<Element>(op.key)),
        value(headsOf<Element>(op.value)),
        keyCache{elements<Element>(op.keyCache), op.keyCache.strides[0], op.keyCache.strides[2],
                 op.keyCache.strides[1]},
        valueCache{elements<Element>(op.valueCache), op.valueCache.strides[0], op.valueCache.strides[2],
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
      chunks = std::max(chunks, (lengths[b] + fresh + chunkKeys - 1) / chunkKeys);
    }
  }

  std::int64_t group() const { return heads / kvHeads; }
  // Keys that new token `token` of a sequence sees.
  Range visible(std::int64_t b, std::int64_t token) const {
    const std::int64_t own = lengths[b] + token;
    return {std::max<std::int64_t>(0, firstVisible(own, 0, window)), own + 1};
  }

  Heads<const Element> query, key, value;
  Heads<Element> keyCache, valueCache, output;
  const std::int32_t* lengths;
  std::int64_t batch, fresh, heads, kvHeads, headSize, window;
  float scale;
  std::int64_t chunks = 0;  // of the longest sequence
};

template <class Element>
void extendCaches(const CachedProblem<Element>& problem, int threads) {
  const auto bytes = static_cast<std::size_t>(problem.headSize) * sizeof(Element);
  const std::int64_t sequences = problem.batch * problem.kvHeads;
#pragma omp parallel for schedule(static) num_threads(threads) if (problem.fresh > mostDecodedTokens)
  for (std::int64_t sequence = 0; sequence < sequences; ++sequence) {
    const std::int64_t b = sequence / problem.kvHeads, h = sequence % problem.kvHeads;
    for (std::int64_t token = 0; token < problem.fresh; ++token) {
      const std::int64_t place = problem.lengths[b] + token;
      std::memcpy(problem.keyCache.at(b, place, h), problem.key.at(b, token, h), bytes);
      std::memcpy(problem.valueCache.at(b, place, h), problem.value.at(b, token, h), bytes);
    }
  }
}

template <class Element>
void prefill(const CachedProblem<Element>& problem, Context& context) {
  const auto constant = [](const Heads<Element>& heads) {
    return Heads<const Element>{heads.data, heads.batchStride, heads.timeStride, heads.headStride};
  };
  ForwardProblem<Element> forward;
  forward.query = problem.query;
  forward.key = constant(problem.keyCache);
  forward.value = constant(problem.valueCache);
  forward.output = problem.output;
  forward.earlierKeys = problem.lengths;
  forward.batch = problem.batch;
  forward.queries = problem.fresh;
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
  template <class Element>
  PartialSoftmax at(const CachedProblem<Element>& problem, std::int64_t b, std::int64_t token, std::int64_t h,
                    std::int64_t chunk) const {
    const std::int64_t index = ((b * problem.fresh + token) * problem.heads + h) * problem.chunks + chunk;
    float* place = data + index * stride;
    return {place, place + 1, place + laneCount * 2};
  }
};

template <class Element>
void scoreKeys(const float* query, const Element* keys, std::int64_t keyStride, std::int64_t count,
               std::int64_t headSize, float* scores) {
  for (std::int64_t s = 0; s < count; ++s) {
    scores[s] = sumVectors(headSize, [&](std::int64_t i, auto extent, Vector sum) TANDEM_SIMD_LAMBDA {
      return hn::MulAdd(load(query + i, extent), load(keys + s * keyStride + i, extent), sum);
    });
  }
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

template <class Element>
void weighValues(const float* weights, const Element* values, std::int64_t valueStride, std::int64_t count,
                 std::int64_t headSize, float* output) {
  const Floats floats;
  std::int64_t i = 0;
  for (; i + 4 * laneCount <= headSize; i += 4 * laneCount) {
    Vector sum0 = hn::Zero(floats), sum1 = sum0, sum2 = sum0, sum3 = sum0;
    for (std::int64_t s = 0; s < count; ++s) {
      const Vector weight = set(weights[s]);
      const Element* value = values + s * valueStride + i;
      sum0 = hn::MulAdd(weight, load(value, Whole{}), sum0);
      sum1 = hn::MulAdd(weight, load(value + laneCount, Whole{}), sum1);
      sum2 = hn::MulAdd(weight, load(value + 2 * laneCount, Whole{}), sum2);
      sum3 = hn::MulAdd(weight, load(value + 3 * laneCount, Whole{}), sum3);
    }
    hn::StoreU(sum0, floats, output + i);
    hn::StoreU(sum1, floats, output + i + laneCount);
    hn::StoreU(sum2, floats, output + i + 2 * laneCount);
    hn::StoreU(sum3, floats, output + i + 3 * laneCount);
  }
  forVectors(headSize - i, [&](std::int64_t j, auto extent) TANDEM_SIMD_LAMBDA {
    Vector sum = hn::Zero(floats);
    for (std::int64_t s = 0; s < count; ++s) {
      sum = hn::MulAdd(set(weights[s]), load(values + s * valueStride + i + j, extent), sum);
    }
    store(sum, output + i + j, extent);
  });
}

// All new tokens and query heads of one (sequence, kvHead) over one chunk of its keys.
template <class Element>
void decodeChunk(const CachedProblem<Element>& problem, std::int64_t b, std::int64_t kvHead, std::int64_t chunk,
                 const Partials& partials, float* query, float* scores) {
  for (std::int64_t token = 0; token < problem.fresh; ++token) {
    const Range visible = problem.visible(b, token);
    const std::int64_t begin = std::max(visible.begin, chunk * chunkKeys);
    const std::int64_t count = std::min(visible.end, (chunk + 1) * chunkKeys) - begin;
    if (count <= 0) continue;
    for (std::int64_t h = kvHead * problem.group(); h < (kvHead + 1) * problem.group(); ++h) {
      const PartialSoftmax result = partials.at(problem, b, token, h, chunk);
      storeScaled(problem.query.at(b, token, h), problem.scale * log2OfE, problem.headSize, query);
      scoreKeys(query, problem.keyCache.at(b, begin, kvHead), problem.keyCache.timeStride, count, problem.headSize,
                scores);
      weighScores(scores, count, result);
      weighValues(scores, problem.valueCache.at(b, begin, kvHead), problem.valueCache.timeStride, count,
                  problem.headSize, result.output);
    }
  }
}

// The chunks of one query put together, relative to the largest score of all.
template <class Element>
void combineChunks(const CachedProblem<Element>& problem, std::int64_t b, std::int64_t token, std::int64_t h,
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

template <class Element>
void decode(const CachedProblem<Element>& problem, Context& context) {
  const std::int64_t queries = problem.batch * problem.fresh * problem.heads;
  const std::int64_t stride = 2 * laneCount + roundUp(problem.headSize, laneCount);
  const std::int64_t partialBytes = queries * problem.chunks * stride * static_cast<std::int64_t>(sizeof(float));
  const Partials partials{reinterpret_cast<float*>(context.scratch.get(1, partialBytes)), stride};
  const auto carveThread = [&](Carver& carver) {
    float* query = carver.take<float>(roundUp(problem.headSize, laneCount));
    return std::pair<float*, float*>(query, carver.take<float>(chunkKeys + laneCount));
  };
  Carver counter(nullptr);
  carveThread(counter);
  const std::int64_t bytesOfThread = counter.bytes();
  std::byte* memory = context.scratch.get(0, bytesOfThread * context.threads);
  const std::int64_t units = problem.batch * problem.kvHeads * problem.chunks;
#pragma omp parallel num_threads(context.threads)
  {
    Carver carver(memory + bytesOfThread * omp_get_thread_num());
    const auto [query, scores] = carveThread(carver);
#pragma omp for schedule(dynamic, 1)
    for (std::int64_t unit = 0; unit < units; ++unit) {
      const std::int64_t sequence = unit / problem.chunks;
      decodeChunk(problem, sequence / problem.kvHeads, sequence % problem.kvHeads, unit % problem.chunks, partials,
                  query, scores);
    }
#pragma omp for schedule(static)
    for (std::int64_t index = 0; index < queries; ++index) {
      const std::int64_t row = index / problem.heads;
      combineChunks(problem, row / problem.fresh, row % problem.fresh, index % problem.heads, partials);
    }
  }
}

void runCachedAttention(const CachedAttention& op, Context& context) {
  withElement(op.query.type, [&](auto* element) {
    const CachedProblem<std::remove_pointer_t<decltype(element)>> problem(op);
    if (problem.batch == 0 || problem.fresh == 0) return;
    extendCaches(problem, context.threads);
    if (problem.fresh > mostDecodedTokens) {
      prefill(problem, context);
    } else {
      decode(problem, context);
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
