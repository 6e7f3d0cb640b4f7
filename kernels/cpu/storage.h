#pragma once
// From a view's storage type at run time to an element type at compile time.

#include "common/base/error.h"
#include "kernels/tensor_view.h"

namespace tandem::kernels::cpu {

// Calls body with a null pointer of the element type: float, BFloat16 or Float16.
template <class Body>
void withElement(DType type, const Body& body) {
  if (type == DType::f32) {
    body(static_cast<float*>(nullptr));
  } else if (type == DType::bf16) {
    body(static_cast<base::BFloat16*>(nullptr));
  } else {
    TANDEM_ASSERT(type == DType::f16, std::string("an operand is stored as ") + base::name(type) +
                                          "; the operators take float32, bfloat16 and float16");
    body(static_cast<base::Float16*>(nullptr));
  }
}

template <class Element>
const Element* elements(const ConstTensorView& view) {
  return static_cast<const Element*>(view.data);
}
template <class Element>
Element* elements(const TensorView& view) {
  return static_cast<Element*>(view.data);
}

}  // namespace tandem::kernels::cpu
