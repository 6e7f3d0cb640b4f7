#pragma once
// Rows sorted by a small key, equal ones in their own order: what makes sums over equal tokens deterministic.

#include <vector_types.h>

#include <cstdint>

#include "kernels/cuda/operators.h"

namespace tandem::kernels::cuda {

struct SortKeys {
  const std::int32_t* keys;
  std::int64_t count;
  std::int64_t first, limit;  // keys lie in [first, first + limit)
  bool mayBeOutside;          // or somewhere else too
};

// Pairs (key - first, row) for row < count, in order; keys outside of the range become `limit`, and so come last. On
// the device, in slot 0 of the scratch, until that is asked for again.
const int2* sortRows(const SortKeys& keys, Context& context);

}  // namespace tandem::kernels::cuda
