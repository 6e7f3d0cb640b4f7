#include "common/base/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tandem::test {
namespace {

std::uint16_t half(float value) { return base::Float16(value).bits; }

float single(std::uint16_t bits) {
  base::Float16 value;
  value.bits = bits;
  return static_cast<float>(value);
}

TEST(Float16, knownValues) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(half(0.0f), 0x0000);
  EXPECT_EQ(half(-0.0f), 0x8000);
  EXPECT_EQ(half(1.0f), 0x3c00);
  EXPECT_EQ(half(-2.0f), 0xc000);
  EXPECT_EQ(half(65504.0f), 0x7bff);
  EXPECT_EQ(half(65519.0f), 0x7bff);
  EXPECT_EQ(half(65520.0f), 0x7c00);
  EXPECT_EQ(half(infinity), 0x7c00);
  EXPECT_EQ(half(0x1p-14f), 0x0400);
  EXPECT_EQ(half(0x1p-24f), 0x0001);
  EXPECT_EQ(half(0x1p-25f), 0x0000);  // a tie, to even
  EXPECT_EQ(half(0x1.8p-24f), 0x0002);
  EXPECT_EQ(half(0.333251953125f), 0x3555);
}

TEST(Float16, everyValueSurvivesTheWayThereAndBack) {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const float value = single(static_cast<std::uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(single(half(value)))) << bits;
    } else {
      EXPECT_EQ(half(value), bits);
    }
  }
}

TEST(Float16, roundsToTheNearerNeighbourAndTiesToEven) {
  for (std::uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const double low = single(static_cast<std::uint16_t>(bits)), high = single(static_cast<std::uint16_t>(bits + 1));
    const auto middle = static_cast<float>((low + high) / 2);
    EXPECT_EQ(half(std::nextafter(middle, 0.0f)), bits);
    EXPECT_EQ(half(std::nextafter(middle, 1e9f)), bits + 1);
    EXPECT_EQ(half(middle), bits % 2 == 0 ? bits : bits + 1);
  }
}

}  // namespace
}  // namespace tandem::test
