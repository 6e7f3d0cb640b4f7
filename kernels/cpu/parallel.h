#pragma once
// Work split over the backend's threads in contiguous blocks, the same for the same thread count.

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/operators.h"

namespace tandem::kernels::cpu {

// Calls body(begin, end, block) for blocks 0, 1, ... that together cover [0, count), at most one a thread, each but the
// last a multiple of `granule` long. Below `worthwhile` items a thread the caller does it all as block 0.
template <class Body>
void parallelBlocks(int threads, std::int64_t count, std::int64_t granule, std::int64_t worthwhile, const Body& body) {
  if (count <= 0) return;
  const std::int64_t granules = (count + granule - 1) / granule;
  if (threads <= 1 || granules <= 1 || count < worthwhile * 2) {
    body(std::int64_t{0}, count, 0);
    return;
  }
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int block = 0; block < threads; ++block) {
    const std::int64_t begin = granules * block / threads * granule;
    const std::int64_t end = std::min(count, granules * (block + 1) / threads * granule);
    if (begin < end) body(begin, end, block);
  }
}

// Items below which a second thread costs more than it brings, for work of about one load and store an element.
constexpr std::int64_t worthwhileElements = 8192;

// The same in rows of `width` elements.
inline std::int64_t worthwhileRows(std::int64_t width) {
  return std::max<std::int64_t>(1, worthwhileElements / std::max<std::int64_t>(1, width));
}

}  // namespace tandem::kernels::cpu
