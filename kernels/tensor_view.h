#pragma once
// What an operator sees of a tensor: where it lies, what its elements are, its shape and its strides.

#include "common/base/dtype.h"
#include "common/base/shape.h"

namespace tandem::kernels {

using base::DType;
using base::Shape;

// Strides are in elements. The last axis of every view is dense (stride 1); the others may skip, so that a slice of the
// last axis, like the queries inside a fused projection, is a view without a copy.
template <class Pointer>
struct BasicView {
  Pointer data = nullptr;
  DType type = DType::f32;
  Shape shape;
  Shape strides;

  BasicView() = default;
  BasicView(Pointer data_, DType type_, const Shape& shape_)
      : data(data_), type(type_), shape(shape_), strides(shape_) {
    std::int64_t stride = 1;
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
      strides[axis] = stride;
      stride *= shape[axis];
    }
  }
  BasicView(Pointer data_, DType type_, const Shape& shape_, const Shape& strides_)
      : data(data_), type(type_), shape(shape_), strides(strides_) {}
  // A view that may be written is one that may be read.
  template <class Other>
  BasicView(const BasicView<Other>& other)
      : data(other.data), type(other.type), shape(other.shape), strides(other.strides) {}

  explicit operator bool() const { return data != nullptr; }
  bool isDense() const {
    std::int64_t stride = 1;
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
      if (shape[axis] != 1 && strides[axis] != stride) return false;
      stride *= shape[axis];
    }
    return true;
  }
};

using TensorView = BasicView<void*>;
using ConstTensorView = BasicView<const void*>;

}  // namespace tandem::kernels
