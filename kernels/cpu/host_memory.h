#pragma once
// Memory of the host for tensors and scratch.

#include <cstddef>
#include <cstdint>

namespace tandem::kernels::cpu {

// At least that many bytes, aligned to 64, large ones in huge pages where the system has them: products and the
// optimizer walk through gigabytes, and a small page costs a look-up in the page table every 4 KB. Null when there is
// not enough.
std::byte* allocateHost(std::int64_t bytes);

void releaseHost(void* memory);

}  // namespace tandem::kernels::cpu
