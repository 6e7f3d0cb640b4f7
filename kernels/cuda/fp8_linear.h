#pragma once
// Linear layers of 8-bit operands: which calls have them, and their operands in place of the 16-bit ones.

#include "kernels/cuda/matrix_product.h"
#include "kernels/cuda/operators.h"

namespace tandem::kernels::cuda {

// Why a device has no products of 8-bit floats; empty if it has.
std::string whyNoFp8(const DeviceProperties& device);

// Gives the product of a call with `fp8` its operands in 8 bits. A call that cuBLASLt does not offer that for keeps
// those that it has, which is logged once for each reason.
void takeFp8Operands(const Linear& call, Product& product, Context& context);
void takeFp8Operands(const LinearBackwardInput& call, Product& product, Context& context);
void takeFp8Operands(const LinearBackwardWeight& call, Product& product, Context& context);

}  // namespace tandem::kernels::cuda
