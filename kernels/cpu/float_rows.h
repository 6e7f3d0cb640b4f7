#pragma once
// Operands of matrix products, which take float32 only: rows of float32 as they lie, those of 16-bit types converted.

#include <cstdint>

#include "kernels/cpu/operators.h"

namespace tandem::kernels::cpu {

// Rows [begin, begin + count) of a dense matrix: in place when it is float32, else converted into that scratch slot.
const float* floatRows(const ConstTensorView& matrix, std::int64_t begin, std::int64_t count, int slot,
                       Context& context);

// How many rows of that many elements may be converted at a time: bounds a scratch slot to 16 MB of floats.
std::int64_t convertibleRows(std::int64_t rows, std::int64_t width);

// A scratch slot as floats.
float* scratchFloats(int slot, std::int64_t count, Context& context);

}  // namespace tandem::kernels::cpu
