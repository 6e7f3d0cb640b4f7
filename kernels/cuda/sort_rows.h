#pragma once
// Rows sorted by a small key, equal ones in their own order: what makes sums over equal tokens deterministic.

#include <vector_types.h>

#include <cstdint>

#include "kernels/cuda/operators.h"

namespace tandem::kernels::cuda {

// Pairs (key, row) for row < count, in order; keys lie in [0, limit). On the device, in slot 0 of the scratch, until
// that is asked for again.
const int2* sortRows(const std::int32_t* keys, std::int64_t count, std::int64_t limit, Context& context);

}  // namespace tandem::kernels::cuda
