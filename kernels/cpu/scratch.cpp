// Scratch: memory that operators borrow, aligned to 64 bytes, kept between calls.
#include <new>
#include <string>

#include "common/base/error.h"
#include "kernels/cpu/operators.h"

namespace tandem::kernels::cpu {

namespace {
constexpr std::align_val_t alignment{64};
}

Scratch::~Scratch() {
  for (const Block& block : blocks_) ::operator delete(block.data, alignment);
}

std::byte* Scratch::get(int slot, std::int64_t bytes) {
  TANDEM_ASSERT(slot >= 0 && slot < slots, "there is no scratch slot " + std::to_string(slot));
  Block& block = blocks_[slot];
  if (bytes <= block.bytes && block.data != nullptr) return block.data;
  ::operator delete(block.data, alignment);
  block = Block{};
  const std::int64_t size = bytes > 64 ? bytes : 64;
  block.data = static_cast<std::byte*>(::operator new(static_cast<std::size_t>(size), alignment, std::nothrow));
  if (block.data == nullptr) {
    throw base::Error(base::ErrorKind::device, "no memory for " + std::to_string(size) +
                                                   " bytes of scratch of a CPU operator; use a smaller micro batch");
  }
  block.bytes = size;
  return block.data;
}

}  // namespace tandem::kernels::cpu
