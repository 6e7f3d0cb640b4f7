#pragma once
// Operands of 8-bit products: made from 16-bit tensors, with the scale that they were made with.

#include "kernels/cuda/matrix_product.h"
#include "kernels/cuda/operators.h"
#include "kernels/fp8_format.h"

namespace tandem::kernels::cuda {

// Scratch that an operand is made in; a product has two.
enum class Fp8Slot { left = 0, right = 3 };

// A dense bfloat16 or float16 [rows, columns] at a multiple of 16 bytes, both extents multiples of 16, as 8-bit floats:
// as it lies or transposed, until the slot is used again. Multiplied by scale[0] of the device's memory, or, where that
// is 0, by the largest power of two that its own largest value leaves room for. largest[0] is raised to its largest
// absolute value, unless it is null.
Matrix castToFp8(const ConstTensorView& from, fp8::Format format, bool transposed, const float* scale, float* largest,
                 Fp8Slot slot, Context& context);

}  // namespace tandem::kernels::cuda
