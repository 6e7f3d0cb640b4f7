// The functions of simd.h and simd_activation.h against the standard library in double, on every target.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/kernels/cpu/functions_test.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/simd_activation.h"
#include "tests/kernels/cpu/targets.h"

#ifndef TANDEM_TESTS_KERNELS_CPU_FUNCTIONS
#define TANDEM_TESTS_KERNELS_CPU_FUNCTIONS
namespace tandem::kernels::cpu::test {

enum class Function { exponential, sigmoid, geluTanh, geluErf, geluTanhSlope, geluErfSlope };

}  // namespace tandem::kernels::cpu::test
#endif

HWY_BEFORE_NAMESPACE();
namespace tandem::kernels::cpu::HWY_NAMESPACE {

void evaluate(test::Function function, const float* from, float* to, std::int64_t count) {
  forVectors(count, [=](std::int64_t i, auto extent) HWY_ATTR {
    const Vector x = load(from + i, extent);
    switch (function) {
      case test::Function::exponential:
        return store(exponential(x), to + i, extent);
      case test::Function::sigmoid:
        return store(sigmoid(x), to + i, extent);
      case test::Function::geluTanh:
        return store(activate<ActivationKind::geluTanh>(x), to + i, extent);
      case test::Function::geluErf:
        return store(activate<ActivationKind::geluErf>(x), to + i, extent);
      case test::Function::geluTanhSlope:
        return store(slope<ActivationKind::geluTanh>(x), to + i, extent);
      case test::Function::geluErfSlope:
        return store(slope<ActivationKind::geluErf>(x), to + i, extent);
    }
  });
}

template <class Element>
void roundTripOf(const float* from, Element* stored, float* to, std::int64_t count) {
  forVectors(count, [=](std::int64_t i, auto extent) HWY_ATTR { store(load(from + i, extent), stored + i, extent); });
  forVectors(count, [=](std::int64_t i, auto extent) HWY_ATTR { store(load(stored + i, extent), to + i, extent); });
}
void roundTrip(const float* from, BFloat16* stored, float* to, std::int64_t count) {
  roundTripOf(from, stored, to, count);
}
void roundTripFloat16(const float* from, Float16* stored, float* to, std::int64_t count) {
  roundTripOf(from, stored, to, count);
}

}  // namespace tandem::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::kernels::cpu::test {

HWY_EXPORT(evaluate);
HWY_EXPORT(roundTrip);
HWY_EXPORT(roundTripFloat16);

namespace {

std::vector<float> grid(double from, double to, int count) {
  std::vector<float> points;
  for (int i = 0; i < count; ++i) points.push_back(static_cast<float>(from + (to - from) * i / (count - 1)));
  return points;
}

// |error| <= relative * |wanted| + absolute at every point, on every target.
template <class Wanted>
void expectClose(Function function, const std::vector<float>& points, double relative, double absolute,
                 const Wanted& wanted) {
  onEveryTarget([&](const std::string& target) {
    std::vector<float> values(points.size());
    HWY_DYNAMIC_DISPATCH(evaluate)(function, points.data(), values.data(), static_cast<std::int64_t>(points.size()));
    for (std::size_t i = 0; i < points.size(); ++i) {
      const double right = wanted(static_cast<double>(points[i]));
      ASSERT_NEAR(static_cast<double>(values[i]), right, relative * std::abs(right) + absolute)
          << target << " at " << points[i];
    }
  });
}

double normalDistribution(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }
double geluInner(double x) { return std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x); }

TEST(Functions, exponentialIsRightToTwoUnitsInTheLastPlace) {
  expectClose(Function::exponential, grid(-87.3, 88.3, 100003), 2.4e-7, 0, [](double x) { return std::exp(x); });
  expectClose(Function::exponential, grid(-1e-3, 1e-3, 1001), 1.2e-7, 0, [](double x) { return std::exp(x); });
}

TEST(Functions, exponentialKeepsItsLimitsAndNaN) {
  onEveryTarget([&](const std::string& target) {
    const float infinity = std::numeric_limits<float>::infinity();
    const std::vector<float> points = {0.0f, -0.0f, infinity, -infinity, 1e30f, -1e30f, 100.0f, -100.0f, std::nanf("")};
    const std::vector<float> wanted = {1.0f, 1.0f, infinity, 0.0f, infinity, 0.0f, infinity, 0.0f};
    std::vector<float> values(points.size());
    HWY_DYNAMIC_DISPATCH(evaluate)
    (Function::exponential, points.data(), values.data(), static_cast<std::int64_t>(points.size()));
    for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(values[i], wanted[i]) << target << " at " << points[i];
    EXPECT_TRUE(std::isnan(values.back())) << target;
  });
}

TEST(Functions, sigmoidIsRightInBothTails) {
  expectClose(Function::sigmoid, grid(-87, 87, 100003), 6e-7, 0, [](double x) { return 1 / (1 + std::exp(-x)); });
}

TEST(Functions, geluIsRightInTheNegativeTailToo) {
  expectClose(Function::geluErf, grid(-5, 20, 100003), 2e-6, 0, [](double x) { return x * normalDistribution(x); });
  expectClose(Function::geluTanh, grid(-5, 20, 100003), 4e-6, 0,
              [](double x) { return x / (1 + std::exp(-2 * geluInner(x))); });
}

TEST(Functions, slopesOfGeluAreItsDerivatives) {
  expectClose(Function::geluErfSlope, grid(-12, 12, 100003), 1e-6, 2e-7,
              [](double x) { return normalDistribution(x) + x * std::exp(-0.5 * x * x) / std::sqrt(2 * M_PI); });
  expectClose(Function::geluTanhSlope, grid(-12, 12, 100003), 1e-6, 5e-7, [](double x) {
    const double t = std::tanh(geluInner(x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
  });
}

TEST(Functions, bfloat16IsRoundedAsBaseRoundsIt) {
  std::vector<float> points = {0.0f, -0.0f, 1.0f, 1.00390625f, 1.01171875f, 3e38f, 3.4e38f, 1e-40f, -1e-40f};
  for (const float value : {std::numeric_limits<float>::infinity(), std::nanf(""), -1.00390630f})
    points.push_back(value);
  for (int i = 0; i < 1000; ++i) points.push_back(std::ldexp(1.0f + static_cast<float>(i) * 1.7e-3f, i % 200 - 100));
  onEveryTarget([&](const std::string& target) {
    std::vector<base::BFloat16> stored(points.size());
    std::vector<float> back(points.size());
    HWY_DYNAMIC_DISPATCH(roundTrip)
    (points.data(), stored.data(), back.data(), static_cast<std::int64_t>(points.size()));
    for (std::size_t i = 0; i < points.size(); ++i) {
      const base::BFloat16 wanted(points[i]);
      EXPECT_EQ(stored[i].bits, wanted.bits) << target << " at " << points[i];
      EXPECT_TRUE(std::isnan(points[i]) || back[i] == static_cast<float>(wanted)) << target << " at " << points[i];
    }
  });
}

// Every number of float16, what lies in the middle to the next one, and just beside the middle.
TEST(Functions, float16IsRoundedAsBaseRoundsIt) {
  std::vector<float> points = {65519.0f, 65520.0f, 1e30f, 1e-40f, std::ldexp(1.0f, -25), std::ldexp(1.5f, -25)};
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    base::Float16 number;
    number.bits = static_cast<std::uint16_t>(bits);
    const auto low = static_cast<float>(number);
    ++number.bits;
    const auto high = static_cast<float>(number);
    points.push_back(low);
    if (!std::isfinite(low) || !std::isfinite(high) || std::signbit(low) != std::signbit(high)) continue;
    const float middle = (low + high) / 2;
    points.insert(points.end(), {middle, std::nextafter(middle, low), std::nextafter(middle, high)});
  }
  onEveryTarget([&](const std::string& target) {
    std::vector<base::Float16> stored(points.size());
    std::vector<float> back(points.size());
    HWY_DYNAMIC_DISPATCH(roundTripFloat16)
    (points.data(), stored.data(), back.data(), static_cast<std::int64_t>(points.size()));
    for (std::size_t i = 0; i < points.size(); ++i) {
      if (std::isnan(points[i])) {
        ASSERT_TRUE(std::isnan(static_cast<float>(stored[i])) && std::isnan(back[i])) << target;
        continue;
      }
      const base::Float16 wanted(points[i]);
      ASSERT_EQ(stored[i].bits, wanted.bits) << target << " at " << points[i];
      ASSERT_EQ(back[i], static_cast<float>(wanted)) << target << " at " << points[i];
    }
  });
}

}  // namespace
}  // namespace tandem::kernels::cpu::test
#endif
