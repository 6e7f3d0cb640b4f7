#pragma once
// The two formats of 8-bit floats, as values that any wider type holds: what a product of such operands sees.

#include <bit>
#include <cmath>
#include <cstdint>

namespace tandem::kernels::fp8 {

// 4 bits of exponent and 3 of mantissa, without infinities; 5 and 2.
enum class Format { e4m3, e5m2 };

constexpr float largestValue(Format format) { return format == Format::e4m3 ? 448.0f : 57344.0f; }

// The nearest value of the format, ties to even; what is larger than its largest becomes that. NaN stays NaN.
inline float rounded(Format format, float value) {
  const int mantissaBits = format == Format::e4m3 ? 3 : 2, leastExponent = format == Format::e4m3 ? -6 : -14;
  const float magnitude = std::abs(value), largest = largestValue(format);
  if (std::isnan(value) || magnitude == 0) return value;
  if (magnitude >= largest) return std::copysign(largest, value);
  const auto exponent = static_cast<int>(std::bit_cast<std::uint32_t>(magnitude) >> 23) - 127;
  const float step = std::ldexp(1.0f, (exponent < leastExponent ? leastExponent : exponent) - mantissaBits);
  return std::copysign(std::nearbyint(magnitude / step) * step, value);
}

// The largest power of two that `largest` can be multiplied by without leaving the format; 1 where there is none.
inline float scaleFor(Format format, float largest) {
  if (!(largest > 0) || std::isinf(largest)) return 1;
  int exponent = 0;
  const float mantissa = std::frexp(largestValue(format) / largest, &exponent);  // in [0.5, 1)
  if (mantissa == 0 || exponent > 127) return std::ldexp(1.0f, 126);
  return std::ldexp(1.0f, exponent - 1);
}

}  // namespace tandem::kernels::fp8
