#pragma once
// Ranges of a flattened tensor as boxes of the tensor itself, the only selections that HDF5 handles fast.

#include <hdf5.h>

#include <array>
#include <cstdint>
#include <vector>

#include "common/base/shape.h"

namespace tandem::hdf5::detail {

struct Box {
  std::array<hsize_t, base::Shape::maxRank> start{};
  std::array<hsize_t, base::Shape::maxRank> extent{};
  std::int64_t count = 0;
};

// The elements begin ... begin + count - 1 of the flattened (row-major) tensor, in that order: a partial first row,
// whole rows, a partial last row, the partial ones cut further in the same way. At most 2 x rank - 1 boxes.
std::vector<Box> boxesOfRange(const base::Shape& shape, std::int64_t begin, std::int64_t count);

}  // namespace tandem::hdf5::detail
