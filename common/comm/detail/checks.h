#pragma once
// What every implementation of the contract demands of its callers.

#include "common/comm/communicator.h"

namespace tandem::comm::detail {

inline std::int64_t sum(std::span<const std::int64_t> counts) {
  std::int64_t total = 0;
  for (const std::int64_t count : counts) {
    TANDEM_ASSERT(count >= 0, "a count of a collective is negative");
    total += count;
  }
  return total;
}

inline std::byte* at(void* data, std::int64_t element, base::DType type) {
  return static_cast<std::byte*>(data) + element * base::byteSize(type);
}
inline const std::byte* at(const void* data, std::int64_t element, base::DType type) {
  return static_cast<const std::byte*>(data) + element * base::byteSize(type);
}

inline std::int64_t bytes(const ConstBuffer& buffer) { return buffer.count * base::byteSize(buffer.type); }

// Of a reduce-scatter (whole = given, piece = received) or an all-gather (the other way round).
inline void checkPieces(const Communicator& communicator, const ConstBuffer& whole, const ConstBuffer& piece,
                        std::span<const std::int64_t> counts) {
  TANDEM_ASSERT(std::ssize(counts) == communicator.size(), "a collective needs one count for each rank");
  TANDEM_ASSERT(whole.type == piece.type, "both buffers of a collective must have the same element type");
  TANDEM_ASSERT(whole.count == sum(counts), "the whole buffer must have as many elements as all pieces together");
  TANDEM_ASSERT(piece.count == counts[static_cast<std::size_t>(communicator.rank())],
                "the piece of this rank must have the count given for it");
}

}  // namespace tandem::comm::detail
