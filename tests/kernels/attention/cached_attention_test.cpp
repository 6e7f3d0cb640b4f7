#include <gtest/gtest.h>

#include "tests/kernels/attention/plain_attention.h"
#include "tests/kernels/cpu/targets.h"

namespace tandem::kernels::cpu::test {
namespace {

constexpr float stale = std::numeric_limits<float>::quiet_NaN();  // what a cache holds beyond its sequences

// Caches of one layer, [batch, kvHeads, capacity, headSize], beginning as garbage.
struct Caches {
  Caches(const Sizes& sizes, std::int64_t capacity)
      : shape{sizes.batch, sizes.kvHeads, capacity, sizes.headSize},
        type(sizes.type),
        floats{std::vector<float>(static_cast<std::size_t>(shape.count()), stale),
               std::vector<float>(static_cast<std::size_t>(shape.count()), stale)},
        halves{std::vector<base::BFloat16>(floats[0].size(), base::BFloat16(stale)),
               std::vector<base::BFloat16>(floats[0].size(), base::BFloat16(stale))} {}
  TensorView view(std::size_t which) {
    if (type == DType::f32) return {floats[which].data(), type, shape};
    return {halves[which].data(), type, shape};
  }
  Shape shape;
  DType type;
  std::vector<float> floats[2];
  std::vector<base::BFloat16> halves[2];
};

// Whole sequences of queries, keys and values, which a test feeds piece by piece.
struct Sequences {
  explicit Sequences(const Sizes& sizes)
      : query(sizes.batch, sizes.time, sizes.heads, sizes.headSize, sizes.type),
        key(sizes.batch, sizes.time, sizes.kvHeads, sizes.headSize, sizes.type),
        value(sizes.batch, sizes.time, sizes.kvHeads, sizes.headSize, sizes.type) {
    std::mt19937 random(11);
    for (HeadsTensor* tensor : {&query, &key, &value}) tensor->fill(random);
  }
  HeadsTensor query, key, value;
};

// Tokens lengths[b] .. lengths[b] + fresh of each sequence, as a tensor of their own.
HeadsTensor piece(const HeadsTensor& whole, const Sizes& sizes, std::int64_t heads,
                  const std::vector<std::int32_t>& lengths, std::int64_t fresh) {
  HeadsTensor part(sizes.batch, fresh, heads, sizes.headSize, sizes.type);
  for (std::int64_t b = 0; b < sizes.batch; ++b) {
    for (std::int64_t t = 0; t < fresh; ++t) {
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t i = 0; i < sizes.headSize; ++i) {
          part.set(b, t, h, i, static_cast<float>(whole.at(b, lengths[static_cast<std::size_t>(b)] + t, h, i)));
        }
      }
    }
  }
  return part;
}

// Feeds the next `fresh` tokens and compares each output with attention over the whole sequence. Returns the outputs.
std::vector<double> feed(const Sizes& sizes, const Sequences& all, Caches& caches, std::vector<std::int32_t>& lengths,
                         std::int64_t fresh) {
  HeadsTensor query = piece(all.query, sizes, sizes.heads, lengths, fresh);
  HeadsTensor key = piece(all.key, sizes, sizes.kvHeads, lengths, fresh);
  HeadsTensor value = piece(all.value, sizes, sizes.kvHeads, lengths, fresh);
  HeadsTensor output(sizes.batch, fresh, sizes.heads, sizes.headSize, sizes.type);
  Context context;
  context.threads = sizes.threads;
  CachedAttention op;
  op.query = query.view();
  op.key = key.view();
  op.value = value.view();
  op.lengths = {lengths.data(), DType::i32, {sizes.batch}};
  op.keyCache = caches.view(0);
  op.valueCache = caches.view(1);
  op.window = sizes.window;
  op.scale = sizes.scale();
  op.output = output.view();
  run(op, context);
  EXPECT_TRUE(output.gapsUntouched());

  double worst = 0;
  for (std::int64_t b = 0; b < sizes.batch; ++b) {
    std::int32_t& length = lengths[static_cast<std::size_t>(b)];
    for (std::int64_t t = length; t < length + fresh; ++t) {
      for (std::int64_t h = 0; h < sizes.heads; ++h) {
        const PlainSoftmax softmax = plainSoftmax(sizes, all.query, all.key, b, t, h);
        for (std::int64_t i = 0; i < sizes.headSize; ++i) {
          double want = 0;
          for (std::size_t s = 0; s < softmax.weights.size(); ++s) {
            want += softmax.weights[s] * all.value.at(b, sizes.firstKey(t) + static_cast<std::int64_t>(s),
                                                      h * sizes.kvHeads / sizes.heads, i);
          }
          const double error = std::abs(output.at(b, t - length, h, i) - want);
          if (!(error <= worst)) worst = error;
        }
      }
    }
    length += static_cast<std::int32_t>(fresh);
  }
  EXPECT_LE(worst, sizes.type == DType::f32 ? 1e-5 : 2e-2) << fresh << " new tokens; " << sizes.text();
  return output.values();
}

TEST(CachedAttention, promptThenTokenByTokenEqualsAttentionOverTheWholeSequence) {
  onEveryTarget([](const std::string& target) {
    SCOPED_TRACE(target);
    for (const DType type : {DType::f32, DType::bf16}) {
      for (const std::int64_t window : {0, 1, 30}) {
        const Sizes sizes{.batch = 2,
                          .time = 130,
                          .heads = 6,
                          .kvHeads = 2,
                          .headSize = 20,
                          .window = window,
                          .type = type,
                          .threads = 2};
        const Sequences all(sizes);
        Caches caches(sizes, 140);
        std::vector<std::int32_t> lengths = {0, 0};
        for (const std::int64_t fresh : {100, 1, 1, 3, 17, 1, 4, 2, 1}) feed(sizes, all, caches, lengths, fresh);
      }
    }
  });
}

TEST(CachedAttention, sequencesOfOneBatchMayHaveDifferentLengths) {
  const Sizes sizes{.batch = 3, .time = 90, .heads = 4, .kvHeads = 4, .headSize = 64, .threads = 3};
  const Sequences all(sizes);
  for (const std::int64_t fresh : {1, 40}) {
    Caches caches(sizes, 90);
    std::vector<std::int32_t> lengths = {0, 0, 0};
    // Fills each sequence's cache up to its own length by feeding it alone (the others repeat their first tokens).
    for (std::int64_t t = 0; t < 48; ++t) {
      std::vector<std::int32_t> places = {static_cast<std::int32_t>(t),
                                          static_cast<std::int32_t>(std::min<std::int64_t>(t, 5)), 0};
      feed(sizes, all, caches, places, 1);
    }
    lengths = {48, 6, 1};
    feed(sizes, all, caches, lengths, fresh);
  }
}

TEST(CachedAttention, aLongCacheIsReadInChunksWithTheSameBitsAtAnyThreadCount) {
  for (const std::int64_t window : {0, 600}) {
    std::vector<double> prompt, decoded;
    for (const int threads : {1, 2, 3}) {
      const Sizes sizes{
          .batch = 1, .time = 1302, .heads = 2, .kvHeads = 1, .headSize = 32, .window = window, .threads = threads};
      const Sequences all(sizes);
      Caches caches(sizes, 1302);
      std::vector<std::int32_t> lengths = {0};
      const std::vector<double> outputs = feed(sizes, all, caches, lengths, 1298);
      const std::vector<double> last = feed(sizes, all, caches, lengths, 4);
      if (threads == 1) prompt = outputs, decoded = last;
      EXPECT_EQ(outputs, prompt);
      EXPECT_EQ(last, decoded);
    }
  }
}

TEST(CachedAttention, noNewTokensIsNoWork) {
  const Sizes sizes{.batch = 1, .time = 4, .heads = 2, .kvHeads = 1, .headSize = 8};
  const Sequences all(sizes);
  Caches caches(sizes, 4);
  std::vector<std::int32_t> lengths = {3};
  feed(sizes, all, caches, lengths, 0);
  EXPECT_TRUE(std::isnan(caches.floats[0][0]));
}

}  // namespace
}  // namespace tandem::kernels::cpu::test
