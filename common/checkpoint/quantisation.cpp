#include "common/checkpoint/quantisation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/base/error.h"

namespace tandem::checkpoint {
namespace {

using base::Error;
using base::ErrorKind;
using base::Float16;
using kernels::quantisedBlock;
using kernels::quantisedGroup;
using kernels::quantisedGroups;

constexpr float largestInt8 = 127, largestInt4 = 15;
constexpr auto halfGroup = static_cast<std::size_t>(quantisedGroup / 2);

std::string text(const RowsPlace& place, std::int64_t row) {
  return "matrix '" + place.matrix + "', row " + std::to_string(place.firstRow + row);
}

std::int64_t scaleBytesOfRow(QuantisedFormat format, std::int64_t inputs) {
  return format == QuantisedFormat::int8 ? 4 : quantisedGroups(inputs) * 4;
}

// Bytes of a row's codes in a file, where int8 has no padding.
std::int64_t storedCodeBytes(QuantisedFormat format, std::int64_t inputs) {
  return format == QuantisedFormat::int8 ? inputs : kernels::codeBytesOfRow(format, inputs);
}

template <class T>
T at(const std::byte* memory, std::int64_t index) {
  T value;
  std::memcpy(&value, memory + index * static_cast<std::int64_t>(sizeof value), sizeof value);
  return value;
}
template <class T>
void put(std::byte* memory, std::int64_t index, const T& value) {
  std::memcpy(memory + index * static_cast<std::int64_t>(sizeof value), &value, sizeof value);
}

void refuseNonFinite(std::span<const float> row, const RowsPlace& place, std::int64_t index) {
  const auto found = std::find_if(row.begin(), row.end(), [](float value) { return !std::isfinite(value); });
  if (found == row.end()) return;
  throw Error(ErrorKind::badData, text(place, index) + ", column " + std::to_string(found - row.begin()) + " is " +
                                      std::to_string(*found) +
                                      ": only finite numbers can be quantised; the model is damaged or has diverged");
}

// --- int8 ------------------------------------------------------------------------------------------------------------

void quantiseInt8(std::span<const float> row, std::byte* codes, std::byte* scales) {
  float largest = 0;
  for (const float value : row) largest = std::max(largest, std::abs(value));
  const float scale = largest / largestInt8;
  put(scales, 0, scale);
  for (std::size_t i = 0; i < row.size(); ++i) {
    // A scale that is zero, or too small for a quotient, stands for a row of zeros.
    const float code = scale > 0 ? std::nearbyint(row[i] / scale) : 0.0f;
    put(codes, static_cast<std::int64_t>(i), static_cast<std::int8_t>(std::clamp(code, -largestInt8, largestInt8)));
  }
}

// --- int4 ------------------------------------------------------------------------------------------------------------

constexpr std::size_t groupSize = static_cast<std::size_t>(quantisedGroup);

// The values of a group, and 1 for each that is there: the last group of a row may be short. Plain arrays and sums in
// eight lanes, which compilers turn into vectors: models have millions of groups.
struct Int4Values {
  std::array<float, groupSize> value{}, present{};
  float count = 0;
};

struct Int4Group {
  Float16 scale, minimum;
  std::array<float, groupSize> codes{};
  float squaredError = 0;
};

// term(i) summed over the group, always in the same order.
template <class Term>
float groupSum(const Term& term) {
  constexpr std::size_t lanes = 8;
  std::array<float, lanes> sums{};
  for (std::size_t begin = 0; begin < groupSize; begin += lanes) {
    for (std::size_t lane = 0; lane < lanes; ++lane) sums[lane] += term(begin + lane);
  }
  for (std::size_t width = lanes / 2; width > 0; width /= 2) {
    for (std::size_t lane = 0; lane < width; ++lane) sums[lane] += sums[lane + width];
  }
  return sums[0];
}

// The nearest codes for a scale and a minimum as they are stored.
Int4Group roundGroup(const Int4Values& values, float scale, float minimum) {
  Int4Group group{.scale = Float16(scale), .minimum = Float16(minimum)};
  const auto step = static_cast<float>(group.scale), origin = static_cast<float>(group.minimum);
  if (!std::isfinite(step) || !std::isfinite(origin)) {  // too large for float16
    group.squaredError = std::numeric_limits<float>::infinity();
    return group;
  }
  constexpr float toWhole =
      0x1.8p23f;  // added and taken off again, it rounds to the nearest whole number, ties to even
  const float inverse = step > 0 ? 1 / step : 0.0f;
  for (std::size_t i = 0; i < groupSize; ++i) {
    const float steps = (values.value[i] - origin) * inverse;
    const float above = steps > 0 ? steps : 0.0f;
    group.codes[i] = ((above < largestInt4 ? above : largestInt4) + toWhole) - toWhole;
  }
  group.squaredError = groupSum([&](std::size_t i) {
    const float error = (values.value[i] - origin - group.codes[i] * step) * values.present[i];
    return error * error;
  });
  return group;
}

// The scale and minimum that fit best, by least squares, to the codes of a group.
Int4Group refit(const Int4Values& values, const Int4Group& group, float sum) {
  const float codes = groupSum([&](std::size_t i) { return group.codes[i] * values.present[i]; });
  const float squares = groupSum([&](std::size_t i) { return group.codes[i] * group.codes[i] * values.present[i]; });
  const float products = groupSum([&](std::size_t i) { return group.codes[i] * values.value[i] * values.present[i]; });
  const float spread = values.count * squares - codes * codes;
  if (spread <= 0) return group;
  const float scale = (values.count * products - codes * sum) / spread;
  if (!(scale > 0)) return group;
  return roundGroup(values, scale, (sum - scale * codes) / values.count);
}

// From the smallest to the largest value in fifteen steps, and somewhat less and more than that: what lies near the
// ends is worth less than what lies between. The best by squared error is taken, the first of equals.
Int4Group quantiseGroup(std::span<const float> row) {
  Int4Values values{.count = static_cast<float>(row.size())};
  std::copy(row.begin(), row.end(), values.value.begin());
  std::fill_n(values.present.begin(), row.size(), 1.0f);
  const auto [lowest, highest] = std::minmax_element(row.begin(), row.end());
  const float minimum = *lowest, range = *highest - *lowest;
  const float sum = groupSum([&](std::size_t i) { return values.value[i]; });
  Int4Group best = roundGroup(values, range / largestInt4, minimum);
  for (const float steps : {13.5f, 14.5f, 15.5f}) {
    const float scale = range / steps;
    const float spare = (range - scale * largestInt4) / 2;
    const Int4Group candidate = refit(values, roundGroup(values, scale, minimum + spare), sum);
    if (candidate.squaredError < best.squaredError) best = candidate;
  }
  return best;
}

void quantiseInt4(std::span<const float> row, std::byte* codes, std::byte* scales, const RowsPlace& place,
                  std::int64_t index) {
  const std::int64_t groups = quantisedGroups(std::ssize(row));
  for (std::int64_t number = 0; number < groups; ++number) {
    const auto begin = static_cast<std::size_t>(number * quantisedGroup);
    const auto values = row.subspan(begin, std::min<std::size_t>(quantisedGroup, row.size() - begin));
    const Int4Group group = quantiseGroup(values);
    if (!std::isfinite(static_cast<float>(group.scale)) || !std::isfinite(static_cast<float>(group.minimum))) {
      throw Error(ErrorKind::badData, text(place, index) + ", columns from " + std::to_string(begin) +
                                          ": values beyond 65504 have no float16 scale; quantise to int8");
    }
    put(scales, 2 * number, group.scale);
    put(scales, 2 * number + 1, group.minimum);
    for (std::size_t i = 0; i < halfGroup; ++i) {
      const int both = static_cast<int>(group.codes[i]) + 16 * static_cast<int>(group.codes[i + halfGroup]);
      codes[static_cast<std::size_t>(number) * halfGroup + i] = static_cast<std::byte>(both);
    }
  }
}

// --- back ------------------------------------------------------------------------------------------------------------

void checkScales(QuantisedFormat format, const std::byte* scales, std::int64_t inputs, const RowsPlace& place,
                 std::int64_t row) {
  bool finite = true;
  if (format == QuantisedFormat::int8) {
    finite = std::isfinite(at<float>(scales, 0));
  } else {
    for (std::int64_t i = 0; i < 2 * quantisedGroups(inputs); ++i) {
      finite = finite && std::isfinite(static_cast<float>(at<Float16>(scales, i)));
    }
  }
  if (!finite) throw Error(ErrorKind::badData, text(place, row) + ": a scale is no finite number; the file is damaged");
}

float dequantise(QuantisedFormat format, const std::byte* codes, const std::byte* scales, std::int64_t column) {
  if (format == QuantisedFormat::int8) {
    return static_cast<float>(at<std::int8_t>(codes, column)) * at<float>(scales, 0);
  }
  const std::int64_t group = column / quantisedGroup, within = column % quantisedGroup, half = quantisedGroup / 2;
  const auto both = at<std::uint8_t>(codes, group * half + within % half);
  const auto code = static_cast<float>(within < half ? both & 15 : both >> 4);
  return code * static_cast<float>(at<Float16>(scales, 2 * group)) +
         static_cast<float>(at<Float16>(scales, 2 * group + 1));
}

std::int64_t rowsOf(QuantisedFormat format, const QuantisedRows& rows, std::int64_t inputs) {
  const std::int64_t count = std::ssize(rows.scales) / std::max<std::int64_t>(1, scaleBytesOfRow(format, inputs));
  TANDEM_ASSERT(std::ssize(rows.scales) == count * scaleBytesOfRow(format, inputs) &&
                    std::ssize(rows.codes) == count * storedCodeBytes(format, inputs),
                "codes and scales are of as many rows");
  return count;
}

bool endsWith(const std::string& text, const std::string& ending) {
  return text.size() >= ending.size() && text.compare(text.size() - ending.size(), ending.size(), ending) == 0;
}

}  // namespace

QuantisedFormat parseQuantisedFormat(const std::string& text) {
  if (text == "int8") return QuantisedFormat::int8;
  if (text == "int4") return QuantisedFormat::int4;
  throw Error(ErrorKind::usage, "'" + text + "' is no format of quantised weights; there are int8 and int4");
}

const char* name(QuantisedFormat format) { return format == QuantisedFormat::int8 ? "int8" : "int4"; }

std::string codesName(const std::string& matrix) { return matrix + ".codes"; }
std::string scalesName(const std::string& matrix) { return matrix + ".scales"; }

QuantisedDatasets quantisedDatasets(QuantisedFormat format, std::int64_t outputs, std::int64_t inputs) {
  if (format == QuantisedFormat::int8) {
    return {
        .codesType = base::DType::i8, .scalesType = base::DType::f32, .codes = {outputs, inputs}, .scales = {outputs}};
  }
  return {.codesType = base::DType::u8,
          .scalesType = base::DType::f16,
          .codes = {outputs, storedCodeBytes(format, inputs)},
          .scales = {outputs, quantisedGroups(inputs), 2}};
}

std::optional<QuantisedFormat> formatOfParameter(const std::string& parameter, const base::Shape& shape,
                                                 QuantisedFormat format) {
  if (shape.rank() != 2 || !endsWith(parameter, ".weight")) return std::nullopt;
  if (parameter == "embedding.weight" || parameter == "head.weight") return QuantisedFormat::int8;
  return format;
}

std::optional<QuantisedFormat> formatOfFrozen(const std::string& parameter, const base::Shape& shape,
                                              QuantisedFormat format) {
  return parameter.starts_with("layers.") ? formatOfParameter(parameter, shape, format) : std::nullopt;
}

QuantisedRows quantiseRows(QuantisedFormat format, std::span<const float> values, std::int64_t inputs,
                           const RowsPlace& place) {
  TANDEM_ASSERT(inputs > 0 && std::ssize(values) % inputs == 0, "whole rows are quantised");
  const std::int64_t count = std::ssize(values) / inputs;
  QuantisedRows rows;
  rows.codes.resize(static_cast<std::size_t>(count * storedCodeBytes(format, inputs)));
  rows.scales.resize(static_cast<std::size_t>(count * scaleBytesOfRow(format, inputs)));
  for (std::int64_t index = 0; index < count; ++index) {
    const auto row = values.subspan(static_cast<std::size_t>(index * inputs), static_cast<std::size_t>(inputs));
    std::byte* codes = rows.codes.data() + index * storedCodeBytes(format, inputs);
    std::byte* scales = rows.scales.data() + index * scaleBytesOfRow(format, inputs);
    refuseNonFinite(row, place, index);
    if (format == QuantisedFormat::int8) {
      quantiseInt8(row, codes, scales);
    } else {
      quantiseInt4(row, codes, scales, place, index);
    }
  }
  return rows;
}

void dequantiseRows(QuantisedFormat format, const QuantisedRows& rows, std::int64_t inputs, std::span<float> target,
                    const RowsPlace& place) {
  const std::int64_t count = rowsOf(format, rows, inputs);
  TANDEM_ASSERT(std::ssize(target) == count * inputs, "the target holds the rows");
  for (std::int64_t row = 0; row < count; ++row) {
    const std::byte* codes = rows.codes.data() + row * storedCodeBytes(format, inputs);
    const std::byte* scales = rows.scales.data() + row * scaleBytesOfRow(format, inputs);
    checkScales(format, scales, inputs, place, row);
    for (std::int64_t column = 0; column < inputs; ++column) {
      target[static_cast<std::size_t>(row * inputs + column)] = dequantise(format, codes, scales, column);
    }
  }
}

QuantisedRows cutColumns(QuantisedFormat format, const QuantisedRows& rows, std::int64_t inputs, std::int64_t begin,
                         std::int64_t count) {
  const bool byGroups = format == QuantisedFormat::int4;
  TANDEM_ASSERT(!byGroups || (begin % quantisedGroup == 0 && (count % quantisedGroup == 0 || begin + count == inputs)),
                "groups of columns that share a scale are not cut");
  QuantisedRows cut;
  const std::int64_t scaleBegin = byGroups ? scaleBytesOfRow(format, begin) : 0;
  for (std::int64_t row = 0; row < rowsOf(format, rows, inputs); ++row) {
    const auto codes = rows.codes.begin() + row * storedCodeBytes(format, inputs) + storedCodeBytes(format, begin);
    cut.codes.insert(cut.codes.end(), codes, codes + storedCodeBytes(format, count));
    const auto scales = rows.scales.begin() + row * scaleBytesOfRow(format, inputs) + scaleBegin;
    cut.scales.insert(cut.scales.end(), scales, scales + scaleBytesOfRow(format, count));
  }
  return cut;
}

QuantisedRows packRows(QuantisedFormat format, const QuantisedRows& rows, std::int64_t inputs, const RowsPlace& place) {
  constexpr std::int64_t word = 4;
  const std::int64_t count = rowsOf(format, rows, inputs), blocks = kernels::quantisedBlocks(count);
  const std::int64_t padded = kernels::codeBytesOfRow(format, inputs), stored = storedCodeBytes(format, inputs);
  const std::int64_t scaleBytes = scaleBytesOfRow(format, inputs);
  QuantisedRows packed;
  packed.codes.resize(static_cast<std::size_t>(blocks * quantisedBlock * padded));
  packed.scales.resize(static_cast<std::size_t>(blocks * quantisedBlock * scaleBytes));
  for (std::int64_t row = 0; row < count; ++row) {
    const std::int64_t block = row / quantisedBlock, lane = row % quantisedBlock;
    const std::byte* scales = rows.scales.data() + row * scaleBytes;
    checkScales(format, scales, inputs, place, row);
    std::byte* codes = packed.codes.data() + block * quantisedBlock * padded + lane * word;
    for (std::int64_t begin = 0; begin < stored; begin += word) {
      std::copy_n(rows.codes.data() + row * stored + begin, std::min(word, stored - begin),
                  codes + begin * quantisedBlock);
    }
    // int8 has one scale of four bytes a row; int4 two of two bytes a group.
    std::byte* target = packed.scales.data() + block * quantisedBlock * scaleBytes;
    const std::int64_t elementBytes = base::byteSize(kernels::scalesType(format));
    for (std::int64_t i = 0; i < scaleBytes / elementBytes; ++i) {
      std::copy_n(scales + i * elementBytes, elementBytes, target + (i * quantisedBlock + lane) * elementBytes);
    }
  }
  return packed;
}

}  // namespace tandem::checkpoint
