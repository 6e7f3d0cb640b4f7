#include "kernels/cpu/host_memory.h"

#include <gtest/gtest.h>

#include <cstring>

namespace tandem::kernels::cpu {
namespace {

TEST(HostMemory, isAlignedAndUsableToItsLastByte) {
  for (const std::int64_t bytes : {0, 1, 100, 4 << 20, (9 << 20) + 12345}) {
    std::byte* memory = allocateHost(bytes);
    ASSERT_NE(memory, nullptr) << bytes;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % 64, 0u) << bytes;
    std::memset(memory, 7, static_cast<std::size_t>(bytes));
    if (bytes > 0) {
      EXPECT_EQ(memory[bytes - 1], std::byte{7}) << bytes;
    }
    releaseHost(memory);
  }
  releaseHost(nullptr);
}

TEST(HostMemory, hasNoneForANegativeSize) { EXPECT_EQ(allocateHost(-1), nullptr); }

}  // namespace
}  // namespace tandem::kernels::cpu
