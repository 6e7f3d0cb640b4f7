#pragma once
// Sums of the contributions of several ranks.

#include <span>

#include "common/base/dtype.h"

namespace tandem::comm::detail {

// sum[i] = contributions[0][i] + contributions[1][i] + ..., in this order; 16-bit floats in float32, rounded at the
// end. `sum` may be one of the contributions.
void addUp(std::span<const void* const> contributions, base::DType type, std::int64_t count, void* sum);

}  // namespace tandem::comm::detail
