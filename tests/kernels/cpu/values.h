#pragma once
// Host tensors for the tests of the CPU kernels: float values drawn from a seed, viewed as either storage type.

#include <cstdint>
#include <vector>

#include "kernels/backend.h"

namespace tandem::kernels::cpu::test {

// Uniform in [-scale, scale].
inline std::vector<float> drawn(std::int64_t count, std::uint64_t seed, float scale = 1) {
  std::vector<float> values(static_cast<std::size_t>(count));
  std::uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (float& value : values) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = scale * (static_cast<float>(state >> 40) / static_cast<float>(1 << 23) - 1.0f);
  }
  return values;
}

inline ConstTensorView view(const std::vector<float>& values, const Shape& shape) {
  return ConstTensorView(values.data(), DType::f32, shape);
}
inline TensorView view(std::vector<float>& values, const Shape& shape) {
  return TensorView(values.data(), DType::f32, shape);
}
inline ConstTensorView view(const std::vector<std::int32_t>& values, const Shape& shape) {
  return ConstTensorView(values.data(), DType::i32, shape);
}
inline ConstTensorView view(const std::vector<base::BFloat16>& values, const Shape& shape) {
  return ConstTensorView(values.data(), DType::bf16, shape);
}
inline TensorView view(std::vector<base::BFloat16>& values, const Shape& shape) {
  return TensorView(values.data(), DType::bf16, shape);
}

inline std::vector<base::BFloat16> rounded(const std::vector<float>& values) {
  std::vector<base::BFloat16> result;
  for (const float value : values) result.push_back(base::BFloat16(value));
  return result;
}
inline std::vector<float> widened(const std::vector<base::BFloat16>& values) {
  std::vector<float> result;
  for (const base::BFloat16 value : values) result.push_back(static_cast<float>(value));
  return result;
}

}  // namespace tandem::kernels::cpu::test
