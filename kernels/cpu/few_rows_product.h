#pragma once
// The product of generation: a few rows against a whole weight, as fast as the weight can be read.

#include "kernels/cpu/operators.h"

namespace tandem::kernels::cpu {

// Up to so many rows the weight's way from memory decides, and the matrix library, which packs it first, is slower.
constexpr std::int64_t fewRows = 4;

// product[rows, outputs] (float32) = input[rows, inputs] weight[outputs, inputs]^T; both of one storage type. Uses
// the scratch slot for the input as floats.
void fewRowsProduct(const ConstTensorView& input, const ConstTensorView& weight, float* product, int slot,
                    Context& context);

}  // namespace tandem::kernels::cpu
