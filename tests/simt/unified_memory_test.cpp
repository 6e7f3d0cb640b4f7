// Machines whose GPU shares the host's memory: what is free is the host's to tell, less a reserve, which is kept.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

#include "common/base/error.h"
#include "kernels/backend.h"
#include "kernels/cuda/device.h"

namespace tandem::kernels::cuda {

namespace {

constexpr std::int64_t gibibyte = std::int64_t{1} << 30;
constexpr std::int64_t reserve = 16 * gibibyte;

std::int64_t availableToTheHost() {
  std::ifstream file("/proc/meminfo");
  std::string word;
  std::int64_t kilobytes = 0;
  while (file >> word) {
    if (word == "MemAvailable:" && file >> kilobytes) return kilobytes * 1024;
  }
  return -1;
}

class UnifiedMemory : public testing::Test {
 protected:
  void SetUp() override { setenv("SIMT_INTEGRATED", "1", 1); }
  void TearDown() override { unsetenv("SIMT_INTEGRATED"); }
};

TEST_F(UnifiedMemory, whatIsFreeIsWhatTheHostCanGiveLessTheReserve) {
  const DeviceProperties device = useDevice(0);
  EXPECT_TRUE(device.isIntegrated);
  const std::int64_t expected = std::max<std::int64_t>(0, availableToTheHost() - reserve);
  // Other programs take and give memory meanwhile.
  EXPECT_NEAR(static_cast<double>(memoryAmount(device).free), static_cast<double>(expected), 2.0 * gibibyte);
}

TEST_F(UnifiedMemory, theReserveIsKeptWithoutTrying) {
  const auto backend = makeCudaBackend({});
  EXPECT_NE(backend->description().find("memory shared with the host"), std::string::npos);
  try {
    // What the host has altogether would leave nothing of the reserve; the emulated device would give it.
    backend->allocate(std::max(memoryAmount(useDevice(0)).free, std::int64_t{0}) + 4 * gibibyte);
    FAIL() << "the reserve was given away";
  } catch (const base::Error& error) {
    EXPECT_EQ(error.kind(), base::ErrorKind::device);
    EXPECT_NE(error.message().find("bytes are free; use a smaller --micro-batch"), std::string::npos);
  }
}

TEST(SeparateMemory, isWhatTheDeviceTells) {
  const DeviceProperties device = useDevice(0);
  EXPECT_FALSE(device.isIntegrated);
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "test");
  EXPECT_EQ(memoryAmount(device).free, static_cast<std::int64_t>(free));
  EXPECT_EQ(memoryAmount(device).total, static_cast<std::int64_t>(total));
}

}  // namespace

}  // namespace tandem::kernels::cuda
