#include "common/checkpoint/quantisation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/base/error.h"
#include "common/base/random.h"

namespace tandem::checkpoint {
namespace {

using base::Error;
using base::ErrorKind;
using base::Float16;
using enum QuantisedFormat;

RowsPlace place() { return {.matrix = "matrix"}; }
const RowsPlace somewhere{.matrix = "layers.3.mlp.down.weight", .firstRow = 40};

std::vector<float> normalValues(std::int64_t count, std::uint64_t seed) {
  std::vector<float> values(static_cast<std::size_t>(count));
  base::fillNormal(seed, 1, 0, 0.02f, values);
  return values;
}

std::vector<float> thereAndBack(QuantisedFormat format, const std::vector<float>& values, std::int64_t inputs) {
  std::vector<float> back(values.size());
  dequantiseRows(format, quantiseRows(format, values, inputs, place()), inputs, back, place());
  return back;
}

double squaredError(std::span<const float> values, std::span<const float> others) {
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    sum += std::pow(static_cast<double>(values[i]) - static_cast<double>(others[i]), 2);
  }
  return sum;
}

// The error of a group whose whole range is cut into fifteen exact steps.
double plainError(std::span<const float> group) {
  const auto [low, high] = std::minmax_element(group.begin(), group.end());
  const double step = (static_cast<double>(*high) - static_cast<double>(*low)) / 15;
  double sum = 0;
  for (const float value : group) {
    const double offset = static_cast<double>(value) - static_cast<double>(*low);
    sum += std::pow(offset - std::nearbyint(offset / step) * step, 2);
  }
  return sum;
}

template <class Work>
std::string messageOf(ErrorKind kind, const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind);
    return error.message();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

void expectSays(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(message.find(part), std::string::npos) << message << " | " << part;
}

TEST(Quantisation, anInt8ValueIsWithinHalfAScale) {
  constexpr std::int64_t inputs = 100, rows = 20;
  const std::vector<float> values = normalValues(rows * inputs, 1), back = thereAndBack(int8, values, inputs);
  for (std::size_t row = 0; row < rows; ++row) {
    const auto own = std::span(values).subspan(row * inputs, inputs);
    const float largest = std::abs(*std::max_element(
        own.begin(), own.end(), [](float one, float other) { return std::abs(one) < std::abs(other); }));
    for (std::size_t i = 0; i < inputs; ++i) {
      EXPECT_LE(std::abs(own[i] - back[row * inputs + i]), largest / 127 * 0.50001f);
    }
  }
}

TEST(Quantisation, anInt4GroupIsAtLeastAsCloseAsPlainRoundingOfItsRange) {
  constexpr std::int64_t inputs = 32, rows = 200;
  const std::vector<float> values = normalValues(rows * inputs, 2), back = thereAndBack(int4, values, inputs);
  double all = 0, plain = 0;
  for (std::size_t row = 0; row < rows; ++row) {
    const auto own = std::span(values).subspan(row * inputs, inputs);
    const double error = squaredError(own, std::span(back).subspan(row * inputs, inputs));
    EXPECT_LE(error, plainError(own) * 1.01) << row;  // the rounding of its scale to float16 costs something
    all += error;
    plain += plainError(own);
  }
  EXPECT_LT(all, plain * 0.95);
}

TEST(Quantisation, aValueBeyondTheStepsOfInt4IsClampedNotWrapped) {
  std::vector<float> values = normalValues(64, 3);
  values[5] = 1.5f;
  values[40] = -1.5f;
  const std::vector<float> back = thereAndBack(int4, values, 64);
  EXPECT_NEAR(back[5], 1.5f, 0.1f);
  EXPECT_NEAR(back[40], -1.5f, 0.1f);
}

TEST(Quantisation, whatLiesOnTheStepsOfAnInt4GroupComesBackExactly) {
  std::vector<float> values(32);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>((i * 7) % 16) * 0.0146484375f - 0.109375f;  // both are float16 numbers
  }
  EXPECT_EQ(thereAndBack(int4, values, 32), values);
}

TEST(Quantisation, theLayoutInAFileIsAsDocumented) {
  std::vector<float> values(33);
  for (std::size_t i = 0; i < 32; ++i) values[i] = static_cast<float>(i % 16);
  values[20] = 9;  // instead of 4
  values[32] = -3;
  const QuantisedRows four = quantiseRows(int4, values, 33, place());
  const QuantisedDatasets shapes = quantisedDatasets(int4, 1, 33);
  ASSERT_EQ(std::ssize(four.codes), shapes.codes.count());
  ASSERT_EQ(std::ssize(four.scales), shapes.scales.count() * 2);
  EXPECT_EQ(four.codes[3], std::byte{0x33});
  EXPECT_EQ(four.codes[4], std::byte{0x94});
  Float16 scales[4];
  std::memcpy(scales, four.scales.data(), sizeof scales);
  EXPECT_EQ(static_cast<float>(scales[0]), 1.0f);
  EXPECT_EQ(static_cast<float>(scales[1]), 0.0f);
  EXPECT_EQ(static_cast<float>(scales[3]), -3.0f);

  const QuantisedRows eight = quantiseRows(int8, values, 33, place());
  ASSERT_EQ(std::ssize(eight.codes), quantisedDatasets(int8, 1, 33).codes.count());
  EXPECT_EQ(eight.codes[15], std::byte{127});
  EXPECT_EQ(static_cast<std::int8_t>(eight.codes[32]), -25);  // -3 * 127 / 15
}

TEST(Quantisation, rowsOfEqualValuesAndOfZerosAreNoSpecialCase) {
  const std::vector<float> zeros(40, 0.0f), equal(40, 0.25f), tiny(40, 1e-42f);
  for (const QuantisedFormat format : {int8, int4}) {
    EXPECT_EQ(thereAndBack(format, zeros, 40), zeros);
    EXPECT_EQ(thereAndBack(format, equal, 40), equal);
    for (const float value : thereAndBack(format, tiny, 40)) EXPECT_NEAR(value, 1e-42f, 1e-42f);
  }
}

TEST(Quantisation, aValueThatIsNoNumberIsRefusedWithItsPlace) {
  for (const QuantisedFormat format : {int8, int4}) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      std::vector<float> values = normalValues(3 * 50, 4);
      values[2 * 50 + 17] = bad;
      const std::string message =
          messageOf(ErrorKind::badData, [&] { (void)quantiseRows(format, values, 50, somewhere); });
      expectSays(message, {"layers.3.mlp.down.weight", "row 42", "column 17"});
    }
  }
}

TEST(Quantisation, valuesTooLargeForFloat16AreRefusedForInt4Only) {
  std::vector<float> values(64, 1.0f);
  values[33] = 1e30f;
  values[34] = -1e30f;
  expectSays(messageOf(ErrorKind::badData, [&] { (void)quantiseRows(int4, values, 64, somewhere); }),
             {"row 40", "columns from 32", "int8"});
  EXPECT_NEAR(thereAndBack(int8, values, 64)[33], 1e30f, 1e25f);
}

TEST(Quantisation, aDamagedScaleIsRefusedWithItsPlace) {
  for (const QuantisedFormat format : {int8, int4}) {
    QuantisedRows rows = quantiseRows(format, normalValues(2 * 64, 5), 64, place());
    rows.scales.back() = rows.scales[rows.scales.size() - 2] = std::byte{0xff};  // not a number in both types
    std::vector<float> back(2 * 64);
    expectSays(messageOf(ErrorKind::badData, [&] { dequantiseRows(format, rows, 64, back, somewhere); }),
               {"layers.3.mlp.down.weight", "row 41"});
    expectSays(messageOf(ErrorKind::badData, [&] { (void)packRows(format, rows, 64, somewhere); }), {"row 41"});
  }
}

TEST(Quantisation, packedRowsLieInterleavedInWords) {
  constexpr std::int64_t inputs = 50, outputs = 11;  // neither a whole group nor a whole block
  for (const QuantisedFormat format : {int8, int4}) {
    const QuantisedRows rows = quantiseRows(format, normalValues(outputs * inputs, 6), inputs, place());
    const QuantisedRows packed = packRows(format, rows, inputs, place());
    const base::Shape codes = kernels::codesInMemory(format, outputs, inputs);
    const base::Shape scales = kernels::scalesInMemory(format, outputs, inputs);
    ASSERT_EQ(std::ssize(packed.codes), codes.count());
    ASSERT_EQ(std::ssize(packed.scales), scales.count() * base::byteSize(kernels::scalesType(format)));
    const auto stored = static_cast<std::size_t>(std::ssize(rows.codes) / outputs);
    for (std::size_t row = 0; row < outputs; ++row) {
      for (std::size_t i = 0; i < stored; ++i) {
        const std::size_t words = static_cast<std::size_t>(codes[1]);
        const std::size_t place = ((row / 8 * words + i / 4) * 8 + row % 8) * 4 + i % 4;
        ASSERT_EQ(packed.codes[place], rows.codes[row * stored + i]) << name(format) << " " << row << " " << i;
      }
    }
    EXPECT_EQ(packed.codes.back(), std::byte{0});  // of a row beyond the last
  }
  const QuantisedRows rows = quantiseRows(int4, normalValues(outputs * inputs, 6), inputs, place());
  const QuantisedRows packed = packRows(int4, rows, inputs, place());
  // The minimum of group 1 of row 10: block 1, lane 2.
  EXPECT_EQ(std::memcmp(packed.scales.data() + (((1 * 2 + 1) * 2 + 1) * 8 + 2) * 2,
                        rows.scales.data() + ((10 * 2 + 1) * 2 + 1) * 2, 2),
            0);
}

TEST(Quantisation, columnsHaveTheValuesOfTheWholeRows) {
  constexpr std::int64_t inputs = 3 * 32 + 5;
  const std::vector<float> values = normalValues(3 * inputs, 4);
  for (const QuantisedFormat format : {int8, int4}) {
    const QuantisedRows rows = quantiseRows(format, values, inputs, place());
    const std::vector<float> whole = thereAndBack(format, values, inputs);
    for (const auto& [begin, count] : {std::pair{0, 32}, {32, 64}, {64, 37}}) {
      std::vector<float> cut(static_cast<std::size_t>(3 * count));
      dequantiseRows(format, cutColumns(format, rows, inputs, begin, count), count, cut, place());
      for (std::int64_t i = 0; i < std::ssize(cut); ++i) {
        const auto at = static_cast<std::size_t>(i / count * inputs + begin + i % count);
        ASSERT_EQ(cut[static_cast<std::size_t>(i)], whole[at]) << name(format) << " " << begin << " " << i;
      }
    }
  }
}

TEST(Quantisation, theTablesOfTokensStayInInt8AndWhatIsNoMatrixStaysFloat) {
  EXPECT_EQ(formatOfParameter("layers.0.attention.qkv.weight", {960, 576}, int4), int4);
  EXPECT_EQ(formatOfParameter("layers.0.attention.qkv.weight", {960, 576}, int8), int8);
  EXPECT_EQ(formatOfParameter("embedding.weight", {49152, 576}, int4), int8);
  EXPECT_EQ(formatOfParameter("head.weight", {49152, 576}, int4), int8);
  EXPECT_EQ(formatOfParameter("embedding.position_weight", {1024, 768}, int4), std::nullopt);
  EXPECT_EQ(formatOfParameter("layers.0.mlp_norm.weight", {576}, int4), std::nullopt);
  EXPECT_EQ(formatOfParameter("layers.0.mlp.up.bias", {3072}, int8), std::nullopt);
}

TEST(Quantisation, formatsAreNamed) {
  EXPECT_EQ(parseQuantisedFormat("int4"), int4);
  EXPECT_STREQ(name(parseQuantisedFormat("int8")), "int8");
  expectSays(messageOf(ErrorKind::usage, [] { (void)parseQuantisedFormat("int3"); }), {"int3", "int8 and int4"});
}

}  // namespace
}  // namespace tandem::checkpoint
