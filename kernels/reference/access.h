#pragma once
// Elements of views as doubles: how the reference operators read and write every storage type.
//
// float64 is understood too, which the contract does not ask for: with it the forward operators can be differentiated
// by finite differences to ten digits, so that the reference's gradients are proved and not just compared.

#include <cstdint>

#include "common/base/error.h"
#include "kernels/tensor_view.h"

namespace tandem::kernels::reference {

using Index = std::int64_t;

[[noreturn]] inline void rejectType(DType type) {
  throw base::Error(base::ErrorKind::usage,
                    std::string("the reference operators have no arithmetic for tensors of type ") + base::name(type) +
                        "; float32, bfloat16 and float16 are possible");
}

inline double load(const ConstTensorView& view, Index offset) {
  switch (view.type) {
    case DType::f32:
      return static_cast<const float*>(view.data)[offset];
    case DType::bf16:
      return static_cast<float>(static_cast<const base::BFloat16*>(view.data)[offset]);
    case DType::f16:
      return static_cast<float>(static_cast<const base::Float16*>(view.data)[offset]);
    case DType::f64:
      return static_cast<const double*>(view.data)[offset];
    default:
      rejectType(view.type);
  }
}

inline void store(const TensorView& view, Index offset, double value) {
  switch (view.type) {
    case DType::f32:
      static_cast<float*>(view.data)[offset] = static_cast<float>(value);
      return;
    case DType::bf16:
      static_cast<base::BFloat16*>(view.data)[offset] = base::BFloat16(static_cast<float>(value));
      return;
    case DType::f16:
      static_cast<base::Float16*>(view.data)[offset] = base::Float16(static_cast<float>(value));
      return;
    case DType::f64:
      static_cast<double*>(view.data)[offset] = value;
      return;
    default:
      rejectType(view.type);
  }
}

// target = value, or target += value.
inline void storeOrAdd(const TensorView& view, Index offset, double value, bool accumulate) {
  store(view, offset, accumulate ? load(view, offset) + value : value);
}

inline Index loadIndex(const ConstTensorView& view, Index offset) {
  return static_cast<const std::int32_t*>(view.data)[offset];
}

// Where [a, b, c, 0] of a strided view of four axes lies.
template <class View>
Index offsetOf(const View& view, Index a, Index b, Index c) {
  return a * view.strides[0] + b * view.strides[1] + c * view.strides[2];
}

}  // namespace tandem::kernels::reference
