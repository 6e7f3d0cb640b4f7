#pragma once
// Element types of tensors and datasets, and the two 16-bit floats.

#include <bit>
#include <cstdint>
#include <string>

namespace tandem::base {

enum class DType : std::uint8_t { f64, f32, bf16, f16, i64, i32, u64, u32, u16, u8, i8 };

constexpr std::int64_t byteSize(DType type) {
  switch (type) {
    case DType::f64:
    case DType::i64:
    case DType::u64:
      return 8;
    case DType::f32:
    case DType::i32:
    case DType::u32:
      return 4;
    case DType::bf16:
    case DType::f16:
    case DType::u16:
      return 2;
    case DType::u8:
    case DType::i8:
      return 1;
  }
  return 0;
}

// "float32", "bfloat16", "uint16", ... as they stand in files and messages.
const char* name(DType type);

// The inverse; throws Error of kind badData for a name that is none.
DType parseDType(const std::string& text);

// bfloat16: the upper half of a float. Conversion from float rounds to nearest, ties to even; NaN stays NaN.
struct BFloat16 {
  std::uint16_t bits = 0;

  BFloat16() = default;
  explicit BFloat16(float value) {
    const auto all = std::bit_cast<std::uint32_t>(value);
    const bool isNan = (all & 0x7fffffffu) > 0x7f800000u;
    bits = isNan ? static_cast<std::uint16_t>((all >> 16) | 0x40u)
                 : static_cast<std::uint16_t>((all + 0x7fffu + ((all >> 16) & 1u)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};

// IEEE 754 binary16: 1 sign bit, 5 exponent bits (bias 15), 10 fraction bits. Conversion from float rounds to nearest,
// ties to even: 65520 and more become infinite, below 2^-14 the result is a multiple of 2^-24. NaN stays NaN.
struct Float16 {
  std::uint16_t bits = 0;

  Float16() = default;
  explicit Float16(float value) {
    const auto all = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (all >> 16) & 0x8000u, magnitude = all & 0x7fffffffu;
    std::uint32_t rounded = 0x7e00u;  // not a number
    if (magnitude <= 0x7f800000u) {
      if (magnitude >= 0x477ff000u) {
        rounded = 0x7c00u;
      } else if (magnitude < 0x38800000u) {  // the addition rounds to a multiple of 2^-24
        rounded = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
      } else {
        rounded = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - ((127u - 15u) << 23)) >> 13;
      }
    }
    bits = static_cast<std::uint16_t>(sign | rounded);
  }
  explicit operator float() const {
    const std::uint32_t sign = (bits & 0x8000u) << 16, exponent = (bits >> 10) & 0x1fu, fraction = bits & 0x3ffu;
    if (exponent == 0) {  // zero or subnormal: fraction x 2^-24
      const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
      return sign != 0 ? -magnitude : magnitude;
    }
    const std::uint32_t widened = exponent == 31 ? 0xffu : exponent + (127 - 15);
    return std::bit_cast<float>(sign | (widened << 23) | (fraction << 13));
  }
};

}  // namespace tandem::base
