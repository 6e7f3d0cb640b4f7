// The activation functions and their derivatives on vectors. Compiled once a target, like simd.h, which it needs.
#if defined(TANDEM_KERNELS_CPU_SIMD_ACTIVATION_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_KERNELS_CPU_SIMD_ACTIVATION_H
#undef TANDEM_KERNELS_CPU_SIMD_ACTIVATION_H
#else
#define TANDEM_KERNELS_CPU_SIMD_ACTIVATION_H
#endif

#include "kernels/backend.h"
#include "kernels/cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::kernels::cpu::HWY_NAMESPACE {

// The tanh form of GELU (Hendrycks & Gimpel 2016): x / 2 * (1 + tanh u) = x * sigmoid(2 u), where
// u = sqrt(2 / pi) * (x + 0.044715 x^3). The sigmoid keeps the relative accuracy of the negative tail.
constexpr float geluScale = 1.5957691216057308f;  // 2 sqrt(2 / pi)
constexpr float geluCubic = 0.044715f;

// The distribution function of the normal distribution and its density.
// With a = |x| / sqrt(2), the function (1 + 2a) e^(a^2) erfc(a) is smooth in q = (a - 2) / (a + 2) (the substitution of
// Shepherd & Laframboise 1981); the polynomial is a least-squares fit at Chebyshev nodes, relative error 3e-8.
HWY_INLINE void normal(Vector x, Vector& distribution, Vector& density) {
  const Vector a = hn::Mul(hn::Abs(x), set(0.70710678118654752f));
  const Vector q = hn::Div(hn::Sub(a, set(2.0f)), hn::Add(a, set(2.0f)));
  Vector p = hn::MulAdd(set(2.36267533e-05f), q, set(-0.000368867011f));
  p = hn::MulAdd(p, q, set(-0.00125107239f));
  p = hn::MulAdd(p, q, set(0.00127830345f));
  p = hn::MulAdd(p, q, set(0.00863800198f));
  p = hn::MulAdd(p, q, set(-0.00804656278f));
  p = hn::MulAdd(p, q, set(-0.0542051606f));
  p = hn::MulAdd(p, q, set(0.164053455f));
  p = hn::MulAdd(p, q, set(-0.166031361f));
  p = hn::MulAdd(p, q, set(-0.0927639082f));
  p = hn::MulAdd(p, q, set(1.27697837f));
  const Vector square = hn::Mul(hn::Mul(x, x), set(0.5f));
  const Vector gauss = exponential(hn::Neg(square));
  const Vector tail = hn::Div(hn::Mul(hn::Mul(p, gauss), set(0.5f)), hn::MulAdd(set(2.0f), a, set(1.0f)));
  distribution = hn::IfThenElse(hn::Lt(x, hn::Zero(Floats())), tail, hn::Sub(set(1.0f), tail));
  density = hn::Mul(gauss, set(0.39894228040143268f));
}

template <ActivationKind kind>
HWY_INLINE Vector activate(Vector x) {
  if constexpr (kind == ActivationKind::geluTanh) {
    const Vector inner = hn::MulAdd(hn::Mul(set(geluScale * geluCubic), x), hn::Mul(x, x), hn::Mul(set(geluScale), x));
    return hn::Mul(x, sigmoid(inner));
  } else if constexpr (kind == ActivationKind::geluErf) {
    Vector distribution, density;
    normal(x, distribution, density);
    return hn::Mul(x, distribution);
  } else if constexpr (kind == ActivationKind::relu2) {
    const Vector positive = hn::IfThenZeroElse(hn::Lt(x, hn::Zero(Floats())), x);  // NaN stays
    return hn::Mul(positive, positive);
  } else {
    return x;
  }
}

// The derivative at x.
template <ActivationKind kind>
HWY_INLINE Vector slope(Vector x) {
  if constexpr (kind == ActivationKind::geluTanh) {
    const Vector square = hn::Mul(x, x);
    const Vector inner = hn::Mul(x, hn::MulAdd(set(geluScale * geluCubic), square, set(geluScale)));
    // With e = exp(-|inner|) <= 1 neither tail of sigmoid * (1 - sigmoid) = e / (1 + e)^2 cancels or overflows.
    const Vector e = exponential(hn::Neg(hn::Abs(inner)));
    const Vector larger = hn::Div(set(1.0f), hn::Add(set(1.0f), e));
    const Vector smaller = hn::Mul(e, larger);
    const Vector s = hn::IfThenElse(hn::Lt(inner, hn::Zero(Floats())), smaller, larger);
    const Vector innerSlope = hn::MulAdd(set(3 * geluScale * geluCubic), square, set(geluScale));
    return hn::MulAdd(hn::Mul(x, innerSlope), hn::Mul(smaller, larger), s);
  } else if constexpr (kind == ActivationKind::geluErf) {
    Vector distribution, density;
    normal(x, distribution, density);
    return hn::MulAdd(x, density, distribution);
  } else if constexpr (kind == ActivationKind::relu2) {
    return hn::Mul(set(2.0f), hn::IfThenZeroElse(hn::Lt(x, hn::Zero(Floats())), x));
  } else {
    return set(1.0f);
  }
}

}  // namespace tandem::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
