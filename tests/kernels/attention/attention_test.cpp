#include <gtest/gtest.h>

#include "tests/kernels/attention/plain_attention.h"
#include "tests/kernels/cpu/targets.h"

namespace tandem::kernels::cpu::test {
namespace {

// The operands of one case, filled at random, and the operators over them.
struct AttentionCase {
  explicit AttentionCase(const Sizes& sizes_)
      : sizes(sizes_),
        query(make(sizes.heads)),
        key(make(sizes.kvHeads)),
        value(make(sizes.kvHeads)),
        gradOutput(make(sizes.heads)),
        output(make(sizes.heads)),
        gradQuery(make(sizes.heads)),
        gradKey(make(sizes.kvHeads)),
        gradValue(make(sizes.kvHeads)),
        logSumExp(static_cast<std::size_t>(sizes.batch * sizes.heads * sizes.time)) {
    std::mt19937 random(7);
    for (HeadsTensor* tensor : {&query, &key, &value, &gradOutput}) tensor->fill(random);
    for (std::int64_t b = 0; b < sizes.batch; ++b) {
      for (std::int64_t t = 0; t < sizes.time; ++t) documentStarts.push_back(sizes.documentStart(t));
    }
    context.threads = sizes.threads;
  }

  void forward() {
    Attention op;
    op.query = view(query);
    op.key = view(key);
    op.value = view(value);
    op.documentStart = {documentStarts.data(), DType::i32, {sizes.batch, sizes.time}};
    op.window = sizes.window;
    op.scale = sizes.scale();
    op.output = output.view();
    op.logSumExp = {logSumExp.data(), DType::f32, {sizes.batch, sizes.heads, sizes.time}};
    run(op, context);
  }
  void backward() {
    AttentionBackward op;
    op.query = view(query);
    op.key = view(key);
    op.value = view(value);
    op.documentStart = {documentStarts.data(), DType::i32, {sizes.batch, sizes.time}};
    op.output = view(output);
    op.logSumExp = {logSumExp.data(), DType::f32, {sizes.batch, sizes.heads, sizes.time}};
    op.gradOutput = view(gradOutput);
    op.window = sizes.window;
    op.scale = sizes.scale();
    op.gradQuery = gradQuery.view();
    op.gradKey = gradKey.view();
    op.gradValue = gradValue.view();
    run(op, context);
  }

  static ConstTensorView view(const HeadsTensor& tensor) { return tensor.view(); }
  HeadsTensor make(std::int64_t heads) const { return {sizes.batch, sizes.time, heads, sizes.headSize, sizes.type}; }
  // float32: rounding of sums over keys and head; bfloat16: of the result, whose inputs were rounded before.
  double tolerance() const { return sizes.type == DType::f32 ? 2e-5 : 2e-2; }

  Sizes sizes;
  HeadsTensor query, key, value, gradOutput, output, gradQuery, gradKey, gradValue;
  std::vector<float> logSumExp;
  std::vector<std::int32_t> documentStarts;
  Context context;
};

void expectNear(const std::vector<double>& got, const std::vector<double>& want, double tolerance, const char* what,
                const Sizes& sizes) {
  ASSERT_EQ(got.size(), want.size());
  double largest = 0;
  for (const double value : want) largest = std::max(largest, std::abs(value));
  double worst = 0;
  std::size_t worstAt = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error =
        std::abs(got[i] - want[i]) / (std::abs(want[i]) + 0.1 * largest + 0.1);  // operands are of size one
    if (!(error <= worst)) worst = error, worstAt = i;
  }
  EXPECT_LE(worst, tolerance) << what << "[" << worstAt << "] is " << got[worstAt] << ", not " << want[worstAt] << ": "
                              << sizes.text();
}

void expectForwardRight(const Sizes& sizes) {
  AttentionCase test(sizes);
  test.forward();
  std::vector<double> want, wantLogSumExp(test.logSumExp.size());
  for (std::int64_t b = 0; b < sizes.batch; ++b) {
    for (std::int64_t t = 0; t < sizes.time; ++t) {
      for (std::int64_t h = 0; h < sizes.heads; ++h) {
        const PlainSoftmax softmax = plainSoftmax(sizes, test.query, test.key, b, t, h);
        wantLogSumExp[static_cast<std::size_t>((b * sizes.heads + h) * sizes.time + t)] = softmax.logSumExp;
        for (std::int64_t i = 0; i < sizes.headSize; ++i) {
          double sum = 0;
          for (std::size_t s = 0; s < softmax.weights.size(); ++s) {
            sum += softmax.weights[s] * test.value.at(b, sizes.firstKey(t) + static_cast<std::int64_t>(s),
                                                      h * sizes.kvHeads / sizes.heads, i);
          }
          want.push_back(sum);
        }
      }
    }
  }
  expectNear(test.output.values(), want, test.tolerance(), "output", sizes);
  expectNear({test.logSumExp.begin(), test.logSumExp.end()}, wantLogSumExp, 1e-5, "logSumExp", sizes);
  EXPECT_TRUE(test.output.gapsUntouched()) << sizes.text();
}

// Gradients by the formula of the definition: dS = P (dP - sum P dP).
void expectBackwardRight(const Sizes& sizes) {
  AttentionCase test(sizes);
  test.forward();
  test.backward();
  const std::int64_t size = sizes.headSize;
  std::vector<double> gradQuery(test.gradQuery.values().size()), gradKey(test.gradKey.values().size());
  std::vector<double> gradValue(gradKey.size());
  const auto at = [&](std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t heads) {
    return static_cast<std::size_t>(((b * sizes.time + t) * heads + h) * size);
  };
  for (std::int64_t b = 0; b < sizes.batch; ++b) {
    for (std::int64_t h = 0; h < sizes.heads; ++h) {
      const std::int64_t kvHead = h * sizes.kvHeads / sizes.heads;
      for (std::int64_t t = 0; t < sizes.time; ++t) {
        const PlainSoftmax softmax = plainSoftmax(sizes, test.query, test.key, b, t, h);
        std::vector<double> gradWeights;
        double average = 0;
        for (std::size_t k = 0; k < softmax.weights.size(); ++k) {
          const std::int64_t s = sizes.firstKey(t) + static_cast<std::int64_t>(k);
          gradWeights.push_back(dot(test.gradOutput, t, h, test.value, s, kvHead, b, size));
          average += softmax.weights[k] * gradWeights[k];
        }
        for (std::size_t k = 0; k < softmax.weights.size(); ++k) {
          const std::int64_t s = sizes.firstKey(t) + static_cast<std::int64_t>(k);
          const double gradScore = softmax.weights[k] * (gradWeights[k] - average) * static_cast<double>(sizes.scale());
          for (std::int64_t i = 0; i < size; ++i) {
            const auto offset = static_cast<std::size_t>(i);
            gradQuery[at(b, t, h, sizes.heads) + offset] += gradScore * test.key.at(b, s, kvHead, i);
            gradKey[at(b, s, kvHead, sizes.kvHeads) + offset] += gradScore * test.query.at(b, t, h, i);
            gradValue[at(b, s, kvHead, sizes.kvHeads) + offset] += softmax.weights[k] * test.gradOutput.at(b, t, h, i);
          }
        }
      }
    }
  }
  expectNear(test.gradQuery.values(), gradQuery, test.tolerance(), "gradQuery", sizes);
  expectNear(test.gradKey.values(), gradKey, test.tolerance(), "gradKey", sizes);
  expectNear(test.gradValue.values(), gradValue, test.tolerance(), "gradValue", sizes);
  EXPECT_TRUE(test.gradQuery.gapsUntouched() && test.gradKey.gapsUntouched() && test.gradValue.gapsUntouched());
}

// Every time and head size that ends a tile, a panel, a strip or a vector early, with all ways to see less than all.
std::vector<Sizes> cases() {
  std::vector<Sizes> result;
  for (const std::int64_t time : {1, 2, 7, 47, 48, 63, 64, 65, 96, 97, 200}) {
    result.push_back({.batch = 2, .time = time, .heads = 3, .kvHeads = 3, .headSize = 64});
    result.push_back({.batch = 1, .time = time, .heads = 6, .kvHeads = 2, .headSize = 16, .threads = 2});
  }
  for (const std::int64_t headSize : {2, 4, 8, 10, 16, 20, 36, 64, 80, 96, 128, 136}) {
    result.push_back({.batch = 1, .time = 130, .heads = 2, .kvHeads = 1, .headSize = headSize, .threads = 2});
  }
  for (const std::int64_t window : {1, 5, 40, 96, 150}) {
    result.push_back({.time = 200, .heads = 9, .kvHeads = 3, .headSize = 16, .window = window, .threads = 3});
  }
  for (const std::int64_t documentLength : {1, 3, 33, 96, 130}) {
    result.push_back({.time = 260, .heads = 2, .kvHeads = 2, .headSize = 24, .documentLength = documentLength});
    result.push_back({.time = 260,
                      .heads = 2,
                      .kvHeads = 1,
                      .headSize = 8,
                      .window = 20,
                      .documentLength = documentLength,
                      .threads = 2});
  }
  result.push_back({.batch = 2, .time = 100, .heads = 4, .kvHeads = 2, .headSize = 64, .type = DType::bf16});
  result.push_back({.batch = 1,
                    .time = 70,
                    .heads = 2,
                    .kvHeads = 2,
                    .headSize = 18,
                    .window = 30,
                    .type = DType::bf16,
                    .threads = 3});
  result.push_back({.time = 50, .heads = 20, .kvHeads = 1, .headSize = 8, .threads = 2});
  return result;
}

TEST(Attention, outputAndLogSumExpAreThoseOfTheDefinition) {
  onEveryTarget([](const std::string& target) {
    SCOPED_TRACE(target);
    for (const Sizes& sizes : cases()) expectForwardRight(sizes);
  });
}

TEST(Attention, gradientsAreThoseOfTheDefinition) {
  onEveryTarget([](const std::string& target) {
    SCOPED_TRACE(target);
    for (const Sizes& sizes : cases()) expectBackwardRight(sizes);
  });
}

TEST(Attention, outputIsTheSameBitForBitAtAnyThreadCount) {
  for (const std::int64_t window : {0, 70}) {
    Sizes sizes{.batch = 1, .time = 300, .heads = 3, .kvHeads = 3, .headSize = 64, .window = window};
    AttentionCase one(sizes);
    one.forward();
    for (const int threads : {2, 3}) {
      sizes.threads = threads;
      AttentionCase several(sizes);
      several.forward();
      EXPECT_EQ(one.output.values(), several.output.values());
      EXPECT_EQ(one.logSumExp, several.logSumExp);
    }
  }
}

TEST(Attention, gradientsAreTheSameBitForBitInEveryRun) {
  const Sizes sizes{.batch = 1, .time = 300, .heads = 6, .kvHeads = 3, .headSize = 64, .threads = 2};
  AttentionCase first(sizes);
  first.forward();
  first.backward();
  for (int i = 0; i < 5; ++i) {
    AttentionCase again(sizes);
    again.forward();
    again.backward();
    ASSERT_EQ(first.gradQuery.values(), again.gradQuery.values());
    ASSERT_EQ(first.gradKey.values(), again.gradKey.values());
    ASSERT_EQ(first.gradValue.values(), again.gradValue.values());
  }
}

TEST(Attention, aNotANumberReachesWhatSeesItAndNothingElse) {
  const Sizes sizes{.batch = 1, .time = 130, .heads = 2, .kvHeads = 2, .headSize = 16};
  for (const bool inKey : {true, false}) {
    AttentionCase test(sizes);
    (inKey ? test.key : test.query).set(0, 100, 1, 3, std::numeric_limits<float>::quiet_NaN());
    test.forward();
    for (std::int64_t t = 0; t < sizes.time; ++t) {
      const bool reached = inKey ? t >= 100 : t == 100;
      EXPECT_EQ(std::isnan(test.output.at(0, t, 1, 0)), reached) << "time " << t << (inKey ? ", key" : ", query");
      EXPECT_FALSE(std::isnan(test.output.at(0, t, 0, 0))) << "time " << t;
    }
    test.backward();
    EXPECT_TRUE(std::isnan(test.gradKey.at(0, 50, 1, 0)) && std::isnan(test.gradQuery.at(0, 100, 1, 0)));
    EXPECT_FALSE(std::isnan(test.gradKey.at(0, 50, 0, 0)) || std::isnan(test.gradQuery.at(0, 100, 0, 0)));
  }
}

TEST(Attention, hugeScoresNeitherOverflowNorVanish) {
  const Sizes sizes{.batch = 1, .time = 200, .heads = 1, .kvHeads = 1, .headSize = 16};
  AttentionCase test(sizes);
  // Key 150 outweighs all others by far: queries from there on read its value alone, earlier ones are not disturbed.
  for (std::int64_t i = 0; i < 16; ++i) {
    test.key.set(0, 150, 0, i, 1000);
    for (std::int64_t t = 0; t < sizes.time; ++t) test.query.set(0, t, 0, i, 30);
  }
  test.forward();
  for (std::int64_t t = 150; t < sizes.time; ++t) {
    EXPECT_EQ(test.output.at(0, t, 0, 2), test.value.at(0, 150, 0, 2)) << "time " << t;
  }
  EXPECT_TRUE(std::isfinite(test.output.at(0, 149, 0, 2)));
}

TEST(Attention, anEmptyBatchIsNoWork) {
  AttentionCase test({.batch = 0, .time = 5, .heads = 2, .kvHeads = 1, .headSize = 8});
  test.forward();
  test.backward();
  EXPECT_TRUE(test.output.values().empty());
}

}  // namespace
}  // namespace tandem::kernels::cpu::test
