#pragma once
// What exchanges need beside their buffers while they are under way, on ranks that exchange through the host's memory.

#include <cstdint>

namespace tandem::comm {

// Bytes that a rank holds for a reduce-scatter by the library's way: of the other ranks' contributions to its piece, a
// few segments at a time. `pieceBytes` are those of its own piece.
std::int64_t reduceScatterRoom(int ranks, std::int64_t pieceBytes);

}  // namespace tandem::comm
