#pragma once
// When each activation is alive, and which of them are one piece of memory because a kernel works in place.

#include <cstddef>
#include <vector>

#include "common/graph/program.h"

namespace tandem::graph::detail {

struct Buffer {
  std::int64_t bytes = 0;         // a multiple of 64
  std::size_t first = 0;          // node that writes it first
  std::size_t last = 0;           // node that reads it last
  std::vector<TensorId> tensors;  // one after the other, each made in place of the one before
};

// The buffers in the order of their first writing. Tensors that no node names have none.
std::vector<Buffer> buffersOf(const Program& program);

}  // namespace tandem::graph::detail
