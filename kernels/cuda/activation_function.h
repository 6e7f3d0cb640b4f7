#pragma once
// The activation functions of one argument and their derivatives, in registers.
//
// bfloat16 activations leave some two dozen instructions an element before arithmetic, not memory, bounds their
// kernels, hence the hardware's exponential and division, both exact to about 2^-21.

#include "kernels/backend.h"
#include "kernels/cuda/launch.h"

namespace tandem::kernels::cuda {

// 1 / (1 + exp(-x)). exp(-x) = infinity gives 0.
__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

// The tanh form of GELU (Hendrycks & Gimpel 2016): x / 2 * (1 + tanh u) = x * sigmoid(2 u), where
// u = sqrt(2 / pi) * (x + 0.044715 x^3).
inline constexpr float geluScale = 1.5957691216057308f;  // 2 sqrt(2 / pi)
inline constexpr float geluCubic = 0.044715f;

template <ActivationKind kind>
__device__ __forceinline__ float activate(float x) {
  if constexpr (kind == ActivationKind::geluTanh) {
    return x * sigmoid(x * fmaf(geluScale * geluCubic, x * x, geluScale));
  } else if constexpr (kind == ActivationKind::geluErf) {
    return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
  } else if constexpr (kind == ActivationKind::relu2) {
    const float positive = x < 0.0f ? 0.0f : x;  // NaN stays
    return positive * positive;
  } else {
    return x;
  }
}

// The derivative at x.
template <ActivationKind kind>
__device__ __forceinline__ float slope(float x) {
  if constexpr (kind == ActivationKind::geluTanh) {
    const float square = x * x;
    // Below -80 both tails are nothing, but exp would overflow and make 0 * infinity of them. A NaN stays by x.
    const float inner = fmaxf(x * fmaf(geluScale * geluCubic, square, geluScale), -80.0f);
    const float e = __expf(-inner);
    const float s = __fdividef(1.0f, 1.0f + e);
    return fmaf(x * fmaf(3 * geluScale * geluCubic, square, geluScale), e * s * s, s);
  } else if constexpr (kind == ActivationKind::geluErf) {
    const float density = 0.39894228040143268f * __expf(-0.5f * x * x);
    return fmaf(x, density, 0.5f * (1.0f + erff(x * 0.70710678118654752f)));
  } else if constexpr (kind == ActivationKind::relu2) {
    return x < 0.0f ? 0.0f : 2.0f * x;
  } else {
    return 1.0f;
  }
}

// Calls body with std::integral_constant<ActivationKind, kind>, for the kinds of one argument.
template <class Body>
void withActivation(ActivationKind kind, Body&& body) {
  using enum ActivationKind;
  switch (kind) {
    case geluTanh:
      return body(std::integral_constant<ActivationKind, geluTanh>{});
    case geluErf:
      return body(std::integral_constant<ActivationKind, geluErf>{});
    case relu2:
      return body(std::integral_constant<ActivationKind, relu2>{});
    case none:
    case swiglu:
      return body(std::integral_constant<ActivationKind, none>{});
  }
}

}  // namespace tandem::kernels::cuda
