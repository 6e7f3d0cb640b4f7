#pragma once
// A context rank's part of a batch.

#include "common/data/batch.h"
#include "common/sharding/grid.h"

namespace tandem::train {

// The same rows with the positions of a context rank alone, its two pieces after each other. documentStart keeps places
// of whole rows and is in the order that the rank's program wants, [2, rowsAtOnce, piece] for each rowsAtOnce rows.
data::Batch contextBatch(const data::Batch& batch, std::int64_t rowsAtOnce, const sharding::Grid& grid,
                         const sharding::Coordinates& own);

}  // namespace tandem::train
