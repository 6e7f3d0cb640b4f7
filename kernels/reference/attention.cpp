#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/quantised_cache.h"
#include "kernels/reference/access.h"
#include "kernels/reference/operators.h"

namespace tandem::kernels::reference {

namespace {

double dot(const ConstTensorView& a, Index aBegin, const ConstTensorView& b, Index bBegin, Index count) {
  double sum = 0;
  for (Index i = 0; i < count; ++i) sum += load(a, aBegin + i) * load(b, bBegin + i);
  return sum;
}

// First key that a query at `place` sees.
Index firstKey(Index place, Index documentStart, Index window) {
  return window > 0 ? std::max(documentStart, place - window + 1) : documentStart;
}

// The keys [begin, end) of a piece of a row that query `t` of another piece sees.
struct Seen {
  Index begin, end;
};
template <class Call>
Seen seenBy(const Call& op, Index batch, Index t) {
  const Index place = op.firstQuery + t, documentStart = loadIndex(op.documentStart, batch * op.query.shape[1] + t);
  const Index begin = std::max<Index>(0, firstKey(place, documentStart, op.window) - op.firstKey);
  return {begin, std::min(op.key.shape[1], place - op.firstKey + 1)};
}

double logSumExpOf(const std::vector<double>& scores) {
  constexpr double nothing = -std::numeric_limits<double>::infinity();
  if (std::all_of(scores.begin(), scores.end(), [](double score) { return score == nothing; })) return nothing;
  double largest = nothing;
  for (const double score : scores) largest = std::max(largest, score);
  double sum = 0;
  for (const double score : scores) sum += std::exp(score - largest);
  return largest + std::log(sum);
}

}  // namespace

void run(const Attention& op) {
  const Index batch = op.query.shape[0], time = op.query.shape[1], heads = op.query.shape[2], size = op.query.shape[3];
  const Index kvHeads = op.key.shape[2];
  for (Index b = 0; b < batch; ++b) {
    for (Index h = 0; h < heads; ++h) {
      const Index kvHead = h * kvHeads / heads;
      for (Index t = 0; t < time; ++t) {
        const Seen seen = seenBy(op, b, t);
        std::vector<double> scores;
        for (Index s = seen.begin; s < seen.end; ++s) {
          scores.push_back(op.scale *
                           dot(op.query, offsetOf(op.query, b, t, h), op.key, offsetOf(op.key, b, s, kvHead), size));
        }
        const double logSumExp = logSumExpOf(scores);
        for (Index i = 0; i < size; ++i) {
          double sum = 0;
          for (Index s = seen.begin; s < seen.end; ++s) {
            const double weight = std::exp(scores[static_cast<std::size_t>(s - seen.begin)] - logSumExp);
            sum += weight * load(op.value, offsetOf(op.value, b, s, kvHead) + i);
          }
          store(op.output, offsetOf(op.output, b, t, h) + i, sum);
        }
        store(op.logSumExp, (b * heads + h) * time + t, logSumExp);
      }
    }
  }
}

namespace {

// Gradients of the keys or values of one (batch, kvHead), summed over the query heads that read them: [time, headSize].
class HeadSum {
 public:
  HeadSum(Index time, Index size) : size_(size), sums_(static_cast<std::size_t>(time * size)) {}
  void add(Index time, Index i, double value) { sums_[static_cast<std::size_t>(time * size_ + i)] += value; }
  void storeTo(const TensorView& view, Index b, Index kvHead) const {
    for (Index t = 0; t < view.shape[1]; ++t) {
      for (Index i = 0; i < size_; ++i) {
        store(view, offsetOf(view, b, t, kvHead) + i, sums_[static_cast<std::size_t>(t * size_ + i)]);
      }
    }
  }

 private:
  Index size_;
  std::vector<double> sums_;
};

// With P = exp(scale q.k - logSumExp), dP = gradOutput . v and D = gradOutput . output:
//   gradValue = P gradOutput, dS = P (dP - D), gradQuery = scale dS k, gradKey = scale dS q.
void queryBackward(const AttentionBackward& op, Index b, Index h, Index t, Index kvHead, HeadSum& gradKey,
                   HeadSum& gradValue) {
  const Index time = op.query.shape[1], heads = op.query.shape[2], size = op.query.shape[3];
  const Index queryAt = offsetOf(op.query, b, t, h), gradAt = offsetOf(op.gradOutput, b, t, h);
  const double logSumExp = load(op.logSumExp, (b * heads + h) * time + t);
  const double delta = dot(op.gradOutput, gradAt, op.output, offsetOf(op.output, b, t, h), size);
  std::vector<double> gradQuery(static_cast<std::size_t>(size));
  const Seen seen = seenBy(op, b, t);
  for (Index s = seen.begin; s < seen.end; ++s) {
    const Index keyAt = offsetOf(op.key, b, s, kvHead), valueAt = offsetOf(op.value, b, s, kvHead);
    const double weight = std::exp(op.scale * dot(op.query, queryAt, op.key, keyAt, size) - logSumExp);
    const double gradScore = weight * (dot(op.gradOutput, gradAt, op.value, valueAt, size) - delta);
    for (Index i = 0; i < size; ++i) {
      gradQuery[static_cast<std::size_t>(i)] += op.scale * gradScore * load(op.key, keyAt + i);
      gradKey.add(s, i, op.scale * gradScore * load(op.query, queryAt + i));
      gradValue.add(s, i, weight * load(op.gradOutput, gradAt + i));
    }
  }
  for (Index i = 0; i < size; ++i) {
    store(op.gradQuery, offsetOf(op.gradQuery, b, t, h) + i, gradQuery[static_cast<std::size_t>(i)]);
  }
}

}  // namespace

void run(const AttentionBackward& op) {
  const Index batch = op.query.shape[0], time = op.query.shape[1], heads = op.query.shape[2], size = op.query.shape[3];
  const Index kvHeads = op.key.shape[2], keys = op.key.shape[1];
  for (Index b = 0; b < batch; ++b) {
    for (Index kvHead = 0; kvHead < kvHeads; ++kvHead) {
      HeadSum gradKey(keys, size), gradValue(keys, size);
      for (Index h = 0; h < heads; ++h) {
        if (h * kvHeads / heads != kvHead) continue;
        for (Index t = 0; t < time; ++t) queryBackward(op, b, h, t, kvHead, gradKey, gradValue);
      }
      gradKey.storeTo(op.gradKey, b, kvHead);
      gradValue.storeTo(op.gradValue, b, kvHead);
    }
  }
}

void run(const MergeAttention& op) {
  const Index batch = op.output.shape[0], time = op.output.shape[1], heads = op.output.shape[2];
  for (Index b = 0; b < batch; ++b) {
    for (Index h = 0; h < heads; ++h) {
      for (Index t = 0; t < time; ++t) {
        const Index statistic = (b * heads + h) * time + t;
        const double mine = load(op.logSumExp, statistic), other = load(op.otherLogSumExp, statistic);
        const double both = logSumExpOf({mine, other});
        const bool seesNothing = both == -std::numeric_limits<double>::infinity();
        const double share = seesNothing ? 0 : std::exp(mine - both);
        const double otherShare = seesNothing ? 0 : std::exp(other - both);
        for (Index i = 0; i < op.output.shape[3]; ++i) {
          const Index at = offsetOf(op.output, b, t, h) + i;
          store(op.output, at,
                share * load(op.output, at) + otherShare * load(op.otherOutput, offsetOf(op.otherOutput, b, t, h) + i));
        }
        store(op.logSumExp, statistic, both);
      }
    }
  }
}

namespace {

// Rows of a cache [.., headSize], or of one in 8 bits.
void storeRow(const TensorView& cache, Index at, const ConstTensorView& source, Index from, Index size) {
  if (cache.type != DType::i8) {
    for (Index i = 0; i < size; ++i) store(cache, at + i, load(source, from + i));
    return;
  }
  double largest = 0;
  for (Index i = 0; i < size; ++i) largest = std::max(largest, std::abs(load(source, from + i)));
  const float scale = static_cast<float>(largest) / largestCacheCode, inverse = scale > 0 ? 1 / scale : 0.0f;
  auto* const row = static_cast<std::int8_t*>(cache.data) + at;
  std::memcpy(row, &scale, sizeof scale);
  for (Index i = 0; i < size; ++i) {
    const float code = std::nearbyint(static_cast<float>(load(source, from + i)) * inverse);
    row[cacheScaleBytes + i] = static_cast<std::int8_t>(std::clamp(code, -largestCacheCode, largestCacheCode));
  }
}

std::vector<double> loadRow(const TensorView& cache, Index at, Index size) {
  std::vector<double> row(static_cast<std::size_t>(size));
  if (cache.type != DType::i8) {
    for (Index i = 0; i < size; ++i) row[static_cast<std::size_t>(i)] = load(cache, at + i);
    return row;
  }
  const auto* const bytes = static_cast<const std::int8_t*>(cache.data) + at;
  float scale = 0;
  std::memcpy(&scale, bytes, sizeof scale);
  for (Index i = 0; i < size; ++i) {
    row[static_cast<std::size_t>(i)] = static_cast<double>(bytes[cacheScaleBytes + i]) * static_cast<double>(scale);
  }
  return row;
}

void extendCache(const CachedAttention& op, Index b) {
  const Index fresh = op.key.shape[1], kvHeads = op.key.shape[2], size = op.key.shape[3];
  const Index length = loadIndex(op.lengths, b);
  for (Index token = 0; token < fresh; ++token) {
    for (Index kvHead = 0; kvHead < kvHeads; ++kvHead) {
      const Index place = length + token;
      storeRow(op.keyCache, offsetOf(op.keyCache, b, kvHead, place), op.key, offsetOf(op.key, b, token, kvHead), size);
      storeRow(op.valueCache, offsetOf(op.valueCache, b, kvHead, place), op.value, offsetOf(op.value, b, token, kvHead),
               size);
    }
  }
}

}  // namespace

void run(const CachedAttention& op) {
  const Index batch = op.query.shape[0], fresh = op.query.shape[1], heads = op.query.shape[2], size = op.query.shape[3];
  const Index kvHeads = op.key.shape[2];
  for (Index b = 0; b < batch; ++b) {
    extendCache(op, b);
    for (Index token = 0; token < fresh; ++token) {
      const Index own = loadIndex(op.lengths, b) + token, first = firstKey(own, 0, op.window);
      for (Index h = 0; h < heads; ++h) {
        const Index kvHead = h * kvHeads / heads, queryAt = offsetOf(op.query, b, token, h);
        std::vector<double> scores;
        for (Index s = first; s <= own; ++s) {
          const std::vector<double> key = loadRow(op.keyCache, offsetOf(op.keyCache, b, kvHead, s), size);
          double score = 0;
          for (Index i = 0; i < size; ++i) score += load(op.query, queryAt + i) * key[static_cast<std::size_t>(i)];
          scores.push_back(op.scale * score);
        }
        const double logSumExp = logSumExpOf(scores);
        std::vector<double> sums(static_cast<std::size_t>(size), 0.0);
        for (Index s = first; s <= own; ++s) {
          const double weight = std::exp(scores[static_cast<std::size_t>(s - first)] - logSumExp);
          const std::vector<double> value = loadRow(op.valueCache, offsetOf(op.valueCache, b, kvHead, s), size);
          for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += weight * value[i];
        }
        for (Index i = 0; i < size; ++i) {
          store(op.output, offsetOf(op.output, b, token, h) + i, sums[static_cast<std::size_t>(i)]);
        }
      }
    }
  }
}

}  // namespace tandem::kernels::reference
