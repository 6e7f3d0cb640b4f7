#pragma once
// What follows the product of a linear layer.

#include "kernels/cpu/operators.h"

namespace tandem::kernels::cpu {

// output = activation(product + bias), of a whole product float32 [rows, outputs], which may be the output itself. Only
// the call's epilogue and its output are looked at.
void finishLinear(const Linear& call, const float* product, Context& context);

}  // namespace tandem::kernels::cpu
