// bfloat16 moments of AdamW: rounded without bias, by bits that depend on the element and not on who updates it.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/kernels/cpu/targets.h"
#include "tests/kernels/cpu/values.h"

namespace tandem::kernels::cpu::test {
namespace {

constexpr std::uint64_t key = 11, stream = 12;

struct Moments {
  std::vector<float> weight;
  std::vector<base::BFloat16> first, second;

  explicit Moments(std::int64_t count, float firstValue = 0.3f, float secondValue = 0.7f)
      : weight(drawn(count, 2)),
        first(static_cast<std::size_t>(count), base::BFloat16(firstValue)),
        second(static_cast<std::size_t>(count), base::BFloat16(secondValue)) {}
};

// Updates elements [begin, end) in a call of its own.
void update(Backend& backend, Moments& m, const std::vector<float>& gradient, std::int64_t begin, std::int64_t end,
            std::uint64_t streamOfCall = stream) {
  const auto at = static_cast<std::ptrdiff_t>(begin);
  const Shape shape{end - begin};
  backend.run(AdamW{.gradient = ConstTensorView(gradient.data() + at, DType::f32, shape),
                    .weight = TensorView(m.weight.data() + at, DType::f32, shape),
                    .firstMoment = TensorView(m.first.data() + at, DType::bf16, shape),
                    .secondMoment = TensorView(m.second.data() + at, DType::bf16, shape),
                    .learningRate = 1e-3f,
                    .weightDecay = 0.1f,
                    .step = 5,
                    .rounding = {.key = key, .stream = streamOfCall, .firstElement = begin}},
              *backend.makeStream());
}

std::vector<std::uint16_t> bitsOf(const std::vector<base::BFloat16>& values) {
  std::vector<std::uint16_t> bits;
  for (const base::BFloat16 value : values) bits.push_back(value.bits);
  return bits;
}

void expectSame(const Moments& a, const Moments& b, const std::string& what) {
  EXPECT_EQ(bitsOf(a.first), bitsOf(b.first)) << what;
  EXPECT_EQ(bitsOf(a.second), bitsOf(b.second)) << what;
  EXPECT_EQ(a.weight, b.weight) << what;
}

TEST(StochasticRounding, givesTheSameBitsHoweverTheElementsAreSharedOut) {
  constexpr std::int64_t count = 1003;
  const auto backend = makeCpuBackend({.threads = 1});
  const auto gradient = drawn(count, 1);
  Moments whole(count), parts(count);
  update(*backend, whole, gradient, 0, count);
  for (const auto& [begin, end] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {0, 1}, {1, 7}, {7, 260}, {260, 517}, {517, 518}, {518, 1003}}) {
    update(*backend, parts, gradient, begin, end);
  }
  expectSame(parts, whole, "in parts");
}

TEST(StochasticRounding, givesTheSameBitsOnEveryTargetAndTheReference) {
  constexpr std::int64_t count = 20003;  // enough for several threads
  const auto gradient = drawn(count, 1);
  Moments wanted(count);
  const auto reference = makeReferenceBackend(), backend = makeCpuBackend({.threads = 3});
  update(*reference, wanted, gradient, 0, count);
  onEveryTarget([&](const std::string& target) {
    Moments got(count);
    update(*backend, got, gradient, 0, count);
    expectSame(got, wanted, target);
  });
}

// The mean of n roundings to neighbours d apart strays from the value by d / (2 sqrt(n)) at most; five times that is
// one case in a million.
TEST(StochasticRounding, hasNoBias) {
  constexpr std::int64_t count = 1 << 18;
  const auto backend = makeCpuBackend({.threads = 1});
  const std::vector<float> gradient(count, 0.0f);
  Moments m(count);
  update(*backend, m, gradient, 0, count);
  const auto check = [&](const std::vector<base::BFloat16>& values, float beta, float before) {
    const double exact = static_cast<double>(std::fma(beta, static_cast<float>(base::BFloat16(before)), 0.0f));
    double sum = 0;
    std::int64_t up = 0;
    const float least = static_cast<float>(*std::min_element(
        values.begin(), values.end(), [](auto a, auto b) { return static_cast<float>(a) < static_cast<float>(b); }));
    float most = least;
    for (const base::BFloat16 value : values) {
      sum += static_cast<double>(static_cast<float>(value));
      most = std::max(most, static_cast<float>(value));
      up += static_cast<float>(value) > least ? 1 : 0;
    }
    EXPECT_LE(static_cast<double>(least), exact);
    EXPECT_GE(static_cast<double>(most), exact);
    const double gap = static_cast<double>(most - least);
    EXPECT_LE(gap, exact / 128) << "only the two neighbours are given";
    EXPECT_GT(up, 0);
    EXPECT_LT(up, count);
    EXPECT_NEAR(sum / count, exact, 5 * gap / 2 / std::sqrt(static_cast<double>(count)));
  };
  check(m.first, 0.9f, 0.3f);
  check(m.second, 0.95f, 0.7f);
}

// Bits of the two moments, of neighbours and of streams have nothing to do with each other: a quarter of all pairs is
// rounded up twice where each is rounded up every other time.
TEST(StochasticRounding, roundsIndependently) {
  constexpr std::int64_t count = 1 << 16;
  const auto backend = makeCpuBackend({.threads = 1});
  const std::vector<float> gradient(count, 0.0f);
  Moments one(count), other(count);
  update(*backend, one, gradient, 0, count);
  update(*backend, other, gradient, 0, count, stream + 1);
  const auto ups = [](const std::vector<base::BFloat16>& values) {
    std::vector<double> above;
    double mean = 0;
    for (const auto value : values) above.push_back(static_cast<double>(static_cast<float>(value)));
    for (const double value : above) mean += value / static_cast<double>(above.size());
    for (double& value : above) value -= mean;
    return above;
  };
  const auto correlation = [&](const std::vector<double>& a, const std::vector<double>& b, std::size_t lag) {
    double product = 0, squareA = 0, squareB = 0;
    for (std::size_t i = 0; i + lag < a.size(); ++i) {
      product += a[i] * b[i + lag];
      squareA += a[i] * a[i];
      squareB += b[i + lag] * b[i + lag];
    }
    return product / std::sqrt(squareA * squareB);
  };
  const double bound = 5 / std::sqrt(static_cast<double>(count));
  const auto first = ups(one.first), second = ups(one.second), stranger = ups(other.first);
  EXPECT_LT(std::abs(correlation(first, second, 0)), bound);
  EXPECT_LT(std::abs(correlation(first, stranger, 0)), bound);
  for (const std::size_t lag : {1u, 2u, 3u, 4u}) EXPECT_LT(std::abs(correlation(first, first, lag)), bound) << lag;
}

TEST(StochasticRounding, keepsWhatIsNoNumberAndInfinity) {
  const auto backend = makeCpuBackend({.threads = 1});
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> gradient = {std::nanf(""), -std::nanf(""), infinity, -infinity, 0.0f};
  Moments m(5);
  update(*backend, m, gradient, 0, 5);
  for (const std::size_t i : {0u, 1u}) EXPECT_TRUE(std::isnan(static_cast<float>(m.first[i])));
  EXPECT_EQ(static_cast<float>(m.first[2]), infinity);
  EXPECT_EQ(static_cast<float>(m.first[3]), -infinity);
  EXPECT_EQ(static_cast<float>(m.second[3]), infinity);
  EXPECT_TRUE(std::isfinite(static_cast<float>(m.first[4])));
}

}  // namespace
}  // namespace tandem::kernels::cpu::test
