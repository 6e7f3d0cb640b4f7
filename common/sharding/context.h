#pragma once
// Context parallelism: which positions of a row a rank has, and its program.
//
// Only attention looks at other positions: in a rank's program it becomes a ringAttention, and everything else works on
// the rank's positions as it would on a shorter row.

#include <array>
#include <cstdint>

#include "common/graph/program.h"
#include "common/sharding/layout.h"

namespace tandem::sharding {

// The two pieces of a row, one early and one late, that a rank has; together they are its row. The length is a multiple
// of 2 * ranks.
std::array<Range, 2> contextPieces(std::int64_t rowLength, int rank, int ranks);

// `forward` is a program over rows of the rank's length. In the result its input document_start is [2, batch, piece]:
// for each token of each piece, the place in the whole row where its document begins.
graph::Program splitOverContextRanks(const graph::Program& forward, int rank, int ranks);

}  // namespace tandem::sharding
