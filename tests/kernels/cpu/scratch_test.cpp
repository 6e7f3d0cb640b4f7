#include <gtest/gtest.h>

#include <cstring>

#include "common/base/error.h"
#include "kernels/cpu/operators.h"

namespace tandem::kernels::cpu {
namespace {

TEST(Scratch, isAlignedToACacheLineAtAnySize) {
  Scratch scratch;
  for (const std::int64_t bytes : {0, 1, 63, 64, 65, 1000001}) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(scratch.get(1, bytes)) % 64, 0u) << bytes;
  }
}

TEST(Scratch, doesNotAllocateAgainForWhatFits) {
  Scratch scratch;
  std::byte* const large = scratch.get(0, 4096);
  EXPECT_EQ(scratch.get(0, 100), large);
  EXPECT_EQ(scratch.get(0, 4096), large);
}

TEST(Scratch, keepsSlotsApart) {
  Scratch scratch;
  std::byte* first = scratch.get(0, 1024);
  std::memset(first, 1, 1024);
  std::memset(scratch.get(Scratch::slots - 1, 1024), 2, 1024);
  for (int i = 0; i < 1024; ++i) ASSERT_EQ(first[i], std::byte{1});
}

TEST(Scratch, saysHowMuchMemoryWasMissing) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer's allocator ends the program when memory is missing";
#endif
  Scratch scratch;
  try {
    scratch.get(0, std::int64_t{1} << 60);
    FAIL() << "an exbibyte was found";
  } catch (const base::Error& error) {
    EXPECT_EQ(error.kind(), base::ErrorKind::device);
    EXPECT_NE(error.message().find(std::to_string(std::int64_t{1} << 60)), std::string::npos);
  }
  EXPECT_NE(scratch.get(0, 64), nullptr);
}

}  // namespace
}  // namespace tandem::kernels::cpu
