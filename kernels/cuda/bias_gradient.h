#pragma once
// The gradient of a bias: sums of the columns of a matrix.

#include "kernels/cuda/operators.h"

namespace tandem::kernels::cuda {

// target[j] = sum over the rows of gradOutput[:, j] (+ target[j]), in float32 and in an order that depends only on the
// shape and the device. `gradOutput` is dense, `target` float32 [columns]. Uses the given slot of the scratch.
void biasGradient(const ConstTensorView& gradOutput, const TensorView& target, bool accumulate, int slot,
                  Context& context);

}  // namespace tandem::kernels::cuda
