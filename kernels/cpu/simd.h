// Vectors of float over the storage types, loops with tails, sums, and the exponential function. Compiled once a
// target, so no include guard of the usual kind.
//
// A file of kernels includes simd_targets.h, sets HWY_TARGET_INCLUDE to itself, includes hwy/foreach_target.h and then
// this. Bodies of loops are lambdas over an extent, Whole{} or Part{count}, so that one text serves the vectors and the
// tail. No vector is captured by a lambda: on SVE a vector has no size.
#if defined(TANDEM_KERNELS_CPU_SIMD_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_KERNELS_CPU_SIMD_H
#undef TANDEM_KERNELS_CPU_SIMD_H
#else
#define TANDEM_KERNELS_CPU_SIMD_H
#endif

#include <cstddef>
#include <cstdint>

#include "common/base/dtype.h"
#include "hwy/highway.h"

// After the parameters of a lambda that holds the body of a loop.
#undef TANDEM_SIMD_LAMBDA
#define TANDEM_SIMD_LAMBDA HWY_ATTR __attribute__((always_inline))

HWY_BEFORE_NAMESPACE();
namespace tandem::kernels::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using base::BFloat16;
using base::Float16;

using Floats = hn::ScalableTag<float>;
using Vector = hn::Vec<Floats>;
using Integers = hn::RebindToSigned<Floats>;
using Words = hn::RebindToUnsigned<Floats>;
using Halves = hn::Rebind<std::uint16_t, Floats>;

struct Whole {};
struct Part {
  std::size_t count;
};

HWY_INLINE std::int64_t lanes() { return static_cast<std::int64_t>(hn::Lanes(Floats())); }
HWY_INLINE Vector set(float value) { return hn::Set(Floats(), value); }

// --- float16 ---------------------------------------------------------------------------------------------------------

// Bits of float16 as floats, and floats rounded to nearest, ties to even; NaN stays NaN. F is a tag of floats.
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128 || (HWY_ARCH_X86 && HWY_TARGET >= HWY_SSE4)
// Without instructions for it: base::Float16 on whole vectors.
template <class F>
HWY_INLINE hn::Vec<F> fromFloat16(F floats, hn::Vec<hn::Rebind<std::uint16_t, F>> halves) {
  const hn::RebindToUnsigned<F> words;
  const auto bits = hn::PromoteTo(words, halves);
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(words, 0x8000u)));
  const auto magnitude = hn::And(bits, hn::Set(words, 0x7fffu));
  const auto shifted = hn::ShiftLeft<13>(magnitude);
  const auto normal = hn::Add(shifted, hn::Set(words, (127u - 15u) << 23));
  const auto endless = hn::Or(shifted, hn::Set(words, 0x7f800000u));  // infinity and NaN
  const auto integers = hn::BitCast(hn::RebindToSigned<F>(), magnitude);
  const auto small = hn::BitCast(words, hn::Mul(hn::ConvertTo(floats, integers), hn::Set(floats, 0x1p-24f)));
  const auto isSmall = hn::Lt(integers, hn::Set(hn::RebindToSigned<F>(), 0x400));
  const auto isEndless = hn::Gt(integers, hn::Set(hn::RebindToSigned<F>(), 0x7bff));
  const auto finite = hn::IfThenElse(hn::RebindMask(words, isSmall), small, normal);
  return hn::BitCast(floats, hn::Or(sign, hn::IfThenElse(hn::RebindMask(words, isEndless), endless, finite)));
}
template <class F>
HWY_INLINE hn::Vec<hn::Rebind<std::uint16_t, F>> toFloat16(F floats, hn::Vec<F> value) {
  const hn::RebindToUnsigned<F> words;
  const hn::RebindToSigned<F> integers;
  const auto bits = hn::BitCast(words, value);
  const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(words, 0x8000u));
  const auto magnitude = hn::And(bits, hn::Set(words, 0x7fffffffu));
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(words, 1u));
  const auto normal = hn::ShiftRight<13>(hn::Sub(hn::Add(magnitude, hn::Add(odd, hn::Set(words, 0xfffu))),  //
                                                 hn::Set(words, (127u - 15u) << 23)));
  const auto half = hn::Set(floats, 0.5f);  // below 2^-14 its addition rounds to a multiple of 2^-24
  const auto small =
      hn::Sub(hn::BitCast(words, hn::Add(hn::BitCast(floats, magnitude), half)), hn::BitCast(words, half));
  const auto ordered = hn::BitCast(integers, magnitude);
  const auto isSmall = hn::RebindMask(words, hn::Lt(ordered, hn::Set(integers, 0x38800000)));
  const auto isLarge = hn::RebindMask(words, hn::Gt(ordered, hn::Set(integers, 0x477fefff)));
  const auto isNan = hn::RebindMask(words, hn::Gt(ordered, hn::Set(integers, 0x7f800000)));
  auto result = hn::IfThenElse(isSmall, small, normal);
  result = hn::IfThenElse(isLarge, hn::Set(words, 0x7c00u), result);
  result = hn::IfThenElse(isNan, hn::Set(words, 0x7e00u), result);
  return hn::DemoteTo(hn::Rebind<std::uint16_t, F>(), hn::BitCast(integers, hn::Or(sign, result)));
}
#else
template <class F>
HWY_INLINE hn::Vec<F> fromFloat16(F floats, hn::Vec<hn::Rebind<std::uint16_t, F>> halves) {
  return hn::PromoteTo(floats, hn::BitCast(hn::Rebind<hwy::float16_t, F>(), halves));
}
template <class F>
HWY_INLINE hn::Vec<hn::Rebind<std::uint16_t, F>> toFloat16(F, hn::Vec<F> value) {
  return hn::BitCast(hn::Rebind<std::uint16_t, F>(), hn::DemoteTo(hn::Rebind<hwy::float16_t, F>(), value));
}
#endif

// --- loads and stores; a partial load fills with zeros ---------------------------------------------------------------

HWY_INLINE Vector load(const float* from, Whole) { return hn::LoadU(Floats(), from); }
HWY_INLINE Vector load(const BFloat16* from, Whole) {
  const Words words;
  const auto halves = hn::LoadU(Halves(), reinterpret_cast<const std::uint16_t*>(from));
  return hn::BitCast(Floats(), hn::ShiftLeft<16>(hn::PromoteTo(words, halves)));
}
HWY_INLINE Vector load(const Float16* from, Whole) {
  return fromFloat16(Floats(), hn::LoadU(Halves(), reinterpret_cast<const std::uint16_t*>(from)));
}
template <class Element>
HWY_INLINE Vector load(const Element* from, Part part) {
  HWY_ALIGN float buffer[HWY_MAX_BYTES / sizeof(float)] = {};
  for (std::size_t i = 0; i < part.count; ++i) buffer[i] = static_cast<float>(from[i]);
  return hn::Load(Floats(), buffer);
}

HWY_INLINE void store(Vector value, float* to, Whole) { hn::StoreU(value, Floats(), to); }
HWY_INLINE void store(Vector value, BFloat16* to, Whole) {  // to nearest, ties to even; NaN stays NaN
  const Words words;
  const auto bits = hn::BitCast(words, value);
  const auto upper = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(upper, hn::Set(words, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(words, 0x7fffu))));
  const auto isNan = hn::RebindMask(words, hn::Ne(value, value));
  const auto result = hn::IfThenElse(isNan, hn::Or(upper, hn::Set(words, 0x40u)), rounded);
  hn::StoreU(hn::DemoteTo(Halves(), hn::BitCast(Integers(), result)), Halves(), reinterpret_cast<std::uint16_t*>(to));
}
HWY_INLINE void store(Vector value, Float16* to, Whole) {
  hn::StoreU(toFloat16(Floats(), value), Halves(), reinterpret_cast<std::uint16_t*>(to));
}
template <class Element>
HWY_INLINE void store(Vector value, Element* to, Part part) {
  HWY_ALIGN float buffer[HWY_MAX_BYTES / sizeof(float)];
  hn::Store(value, Floats(), buffer);
  for (std::size_t i = 0; i < part.count; ++i) to[i] = static_cast<Element>(buffer[i]);
}

// --- loops -----------------------------------------------------------------------------------------------------------

// body(index, extent) for every vector of [0, count).
template <class Body>
HWY_INLINE void forVectors(std::int64_t count, const Body& body) {
  const std::int64_t step = lanes();
  std::int64_t i = 0;
  for (; i + step <= count; i += step) body(i, Whole{});
  if (i < count) body(i, Part{static_cast<std::size_t>(count - i)});
}

// The sum of all lanes of body's results, where body(index, extent, sum) returns sum + its part; lanes beyond the
// extent must add nothing, which partial loads give. Four sums run side by side to hide the latency of an addition.
template <class Body>
HWY_INLINE float sumVectors(std::int64_t count, const Body& body) {
  const std::int64_t step = lanes();
  Vector sum0 = hn::Zero(Floats()), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  std::int64_t i = 0;
  for (; i + 4 * step <= count; i += 4 * step) {
    sum0 = body(i, Whole{}, sum0);
    sum1 = body(i + step, Whole{}, sum1);
    sum2 = body(i + 2 * step, Whole{}, sum2);
    sum3 = body(i + 3 * step, Whole{}, sum3);
  }
  for (; i + step <= count; i += step) sum0 = body(i, Whole{}, sum0);
  if (i < count) sum1 = body(i, Part{static_cast<std::size_t>(count - i)}, sum1);
  return hn::GetLane(hn::SumOfLanes(Floats(), hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3))));
}

// --- functions -------------------------------------------------------------------------------------------------------

// e^x to 2 units in the last place: x = n ln 2 + r, polynomial in r (coefficients of Moshier's Cephes expf), times 2^n.
// Above 88.37 it is infinite, below -87.33 zero; NaN stays NaN.
HWY_INLINE Vector exponential(Vector x) {
  const Integers integers;
  const Vector n = hn::Round(hn::Mul(x, set(1.44269504088896341f)));
  const Vector r = hn::NegMulAdd(n, set(-2.12194440e-4f), hn::NegMulAdd(n, set(0.693359375f), x));
  Vector p = hn::MulAdd(set(1.9875691500e-4f), r, set(1.3981999507e-3f));
  p = hn::MulAdd(p, r, set(8.3334519073e-3f));
  p = hn::MulAdd(p, r, set(4.1665795894e-2f));
  p = hn::MulAdd(p, r, set(1.6666665459e-1f));
  p = hn::MulAdd(p, r, set(5.0000001201e-1f));
  p = hn::Add(hn::MulAdd(p, hn::Mul(r, r), r), set(1.0f));
  const auto exponent = hn::Add(hn::ConvertTo(integers, n), hn::Set(integers, 127));
  const Vector power = hn::BitCast(Floats(), hn::ShiftLeft<23>(exponent));
  const Vector inside = hn::IfThenElse(hn::Gt(x, set(88.37f)), hn::Inf(Floats()), hn::Mul(p, power));
  return hn::IfThenZeroElse(hn::Lt(x, set(-87.33f)), inside);
}

// 1 / (1 + e^-x)
HWY_INLINE Vector sigmoid(Vector x) { return hn::Div(set(1.0f), hn::Add(set(1.0f), exponential(hn::Neg(x)))); }

}  // namespace tandem::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
