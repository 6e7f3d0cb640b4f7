#include <string>

#include "common/base/error.h"
#include "kernels/cpu/host_memory.h"
#include "kernels/cpu/operators.h"

namespace tandem::kernels::cpu {

Scratch::~Scratch() {
  for (const Block& block : blocks_) releaseHost(block.data);
}

std::byte* Scratch::get(int slot, std::int64_t bytes) {
  TANDEM_ASSERT(slot >= 0 && slot < slots, "there is no scratch slot " + std::to_string(slot));
  Block& block = blocks_[slot];
  if (bytes <= block.bytes && block.data != nullptr) return block.data;
  releaseHost(block.data);
  block = Block{};
  block.data = allocateHost(bytes);
  if (block.data == nullptr) {
    throw base::Error(base::ErrorKind::device, "no memory for " + std::to_string(bytes) +
                                                   " bytes of scratch of a CPU operator; use a smaller micro batch");
  }
  block.bytes = bytes;
  return block.data;
}

}  // namespace tandem::kernels::cpu
