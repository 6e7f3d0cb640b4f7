#include "kernels/cpu/host_memory.h"

#include <sys/mman.h>

#include <cstdlib>

namespace tandem::kernels::cpu {

namespace {
constexpr std::size_t cacheLine = 64;
constexpr std::size_t hugePage = std::size_t{2} << 20;
}  // namespace

std::byte* allocateHost(std::int64_t bytes) {
  if (bytes < 0) return nullptr;
  const auto wanted = static_cast<std::size_t>(bytes > 0 ? bytes : 1);
  const std::size_t alignment = wanted >= 2 * hugePage ? hugePage : cacheLine;
  const std::size_t size = (wanted + cacheLine - 1) / cacheLine * cacheLine;
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, size) != 0) return nullptr;
#ifdef MADV_HUGEPAGE
  // Whole pages only, so that no more memory is used than asked for. A system without huge pages refuses: no matter.
  if (alignment == hugePage) madvise(memory, size / hugePage * hugePage, MADV_HUGEPAGE);
#endif
  return static_cast<std::byte*>(memory);
}

void releaseHost(void* memory) { std::free(memory); }

}  // namespace tandem::kernels::cpu
