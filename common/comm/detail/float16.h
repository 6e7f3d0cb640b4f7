#pragma once
// The two 16-bit floats as float32, and back: reductions of them are performed in float32.

#include <cstdint>

#include "common/base/dtype.h"

namespace tandem::comm::detail {

bool isFloat16(base::DType type);  // bf16 or f16

// Both take `count` elements of the 16-bit type. Rounding is to nearest, ties to even.
void widen(const void* source, base::DType type, std::int64_t count, float* target);
void narrow(const float* source, std::int64_t count, base::DType type, void* target);

}  // namespace tandem::comm::detail
