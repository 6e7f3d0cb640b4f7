#include "common/comm/detail/float16.h"

#include <bit>
#include <cmath>

namespace tandem::comm::detail {
namespace {

// IEEE 754 binary16: 1 sign bit, 5 exponent bits (bias 15), 10 fraction bits.
float halfToFloat(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000u) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fu;
  const std::uint32_t fraction = half & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: fraction x 2^-24
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  const std::uint32_t widened = exponent == 31 ? 0xffu : exponent + (127 - 15);
  return std::bit_cast<float>(sign | (widened << 23) | (fraction << 13));
}

std::uint16_t floatToHalf(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);   // not a number
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // 65520 and more round to infinity
  if (magnitude < 0x38800000u) {  // below 2^-14: a multiple of 2^-24, which the addition rounds to
    const float rounded = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign |
                                      (std::bit_cast<std::uint32_t>(rounded) - std::bit_cast<std::uint32_t>(0.5f)));
  }
  const std::uint32_t tieToEven = (magnitude >> 13) & 1u;
  const std::uint32_t rounded = magnitude + 0xfffu + tieToEven - ((127u - 15u) << 23);
  return static_cast<std::uint16_t>(sign | (rounded >> 13));
}

}  // namespace

bool isFloat16(base::DType type) { return type == base::DType::bf16 || type == base::DType::f16; }

void widen(const void* source, base::DType type, std::int64_t count, float* target) {
  if (type == base::DType::bf16) {
    const auto* values = static_cast<const base::BFloat16*>(source);
    for (std::int64_t i = 0; i < count; ++i) target[i] = static_cast<float>(values[i]);
  } else {
    const auto* values = static_cast<const std::uint16_t*>(source);
    for (std::int64_t i = 0; i < count; ++i) target[i] = halfToFloat(values[i]);
  }
}

void narrow(const float* source, std::int64_t count, base::DType type, void* target) {
  if (type == base::DType::bf16) {
    auto* values = static_cast<base::BFloat16*>(target);
    for (std::int64_t i = 0; i < count; ++i) values[i] = base::BFloat16(source[i]);
  } else {
    auto* values = static_cast<std::uint16_t*>(target);
    for (std::int64_t i = 0; i < count; ++i) values[i] = floatToHalf(source[i]);
  }
}

}  // namespace tandem::comm::detail
