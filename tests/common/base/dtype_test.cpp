#include "common/base/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "common/base/error.h"
#include "common/base/shape.h"

namespace tandem::base {
namespace {

std::uint16_t rounded(float value) { return BFloat16(value).bits; }
float floatOf(std::uint32_t bits) { return std::bit_cast<float>(bits); }

TEST(BFloat16, roundsToNearestAndTiesToEven) {
  EXPECT_EQ(rounded(floatOf(0x3f800000)), 0x3f80);
  EXPECT_EQ(rounded(floatOf(0x3f807fff)), 0x3f80);
  EXPECT_EQ(rounded(floatOf(0x3f808000)), 0x3f80);  // a tie above an even one
  EXPECT_EQ(rounded(floatOf(0x3f808001)), 0x3f81);
  EXPECT_EQ(rounded(floatOf(0x3f818000)), 0x3f82);  // a tie above an odd one
  EXPECT_EQ(rounded(floatOf(0xbf818000)), 0xbf82);
  EXPECT_EQ(rounded(floatOf(0x7f7fffff)), 0x7f80);  // the largest float is beyond the largest bfloat16
  EXPECT_EQ(rounded(-0.0f), 0x8000);
}

TEST(BFloat16, keepsInfinityAndNotANumber) {
  EXPECT_EQ(rounded(std::numeric_limits<float>::infinity()), 0x7f80);
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(std::nanf("")))));
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(floatOf(0x7f800001)))));  // its upper half alone is infinity
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(floatOf(0xffffffff)))));
}

TEST(BFloat16, everyValueSurvivesTheWayThroughFloat) {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    BFloat16 value;
    value.bits = static_cast<std::uint16_t>(bits);
    const auto wide = static_cast<float>(value);
    if (!std::isnan(wide)) {
      EXPECT_EQ(rounded(wide), bits);
    }
  }
}

TEST(DType, namesAreReadBack) {
  for (const DType type : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64, DType::i32, DType::u64,
                           DType::u32, DType::u16, DType::u8, DType::i8}) {
    EXPECT_EQ(parseDType(name(type)), type);
    EXPECT_GT(byteSize(type), 0);
  }
  EXPECT_EQ(byteSize(DType::bf16), 2);
  EXPECT_STREQ(name(DType::bf16), "bfloat16");
  EXPECT_THROW(parseDType("complex64"), Error);
}

TEST(Shape, countsItsElementsAndRows) {
  const Shape shape = {4, 256, 768};
  EXPECT_EQ(shape.rank(), 3);
  EXPECT_EQ(shape.count(), 4 * 256 * 768);
  EXPECT_EQ(shape.rows(), 1024);
  EXPECT_EQ(shape.last(), 768);
  EXPECT_EQ(shape.text(), "[4, 256, 768]");
  EXPECT_EQ(shape, (Shape{4, 256, 768}));
  EXPECT_FALSE(shape == (Shape{4, 256}));
  EXPECT_EQ(Shape().count(), 1);
  EXPECT_EQ((Shape{3, 0}).count(), 0);
  EXPECT_EQ((Shape{3, 0}).rows(), 0);
  EXPECT_EQ((Shape{1 << 20, 1 << 20}).count(), std::int64_t{1} << 40);
}

}  // namespace
}  // namespace tandem::base
