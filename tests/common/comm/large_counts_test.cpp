#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/mpi_test.h"

namespace tandem::test {
namespace {

std::int64_t freeMemoryBytes() { return std::int64_t{sysconf(_SC_AVPHYS_PAGES)} * sysconf(_SC_PAGESIZE); }

// More bytes than an int counts. The giver's are never written, so they take no memory.
TEST(LargeCounts, moreThanTwoToThe31ElementsReachTheOtherRank) {
  constexpr std::int64_t count = (std::int64_t{1} << 31) + 12345;
  comm::Communicator& all = world();
  if (all.size() != 2) GTEST_SKIP() << "runs on two ranks";
  if (comm::allReduceScalar(all, freeMemoryBytes(), comm::Reduction::minimum) < 2 * count) {
    GTEST_SKIP() << "too little free memory for " << count << " bytes";
  }
  const std::unique_ptr<std::uint8_t, void (*)(void*)> bytes(
      static_cast<std::uint8_t*>(std::calloc(static_cast<std::size_t>(count), 1)), &std::free);
  ASSERT_TRUE(bytes);
  if (all.rank() == 0) {
    bytes.get()[0] = 1;
    bytes.get()[count / 2] = 2;
    bytes.get()[count - 1] = 3;
  }
  const std::vector<std::int64_t> counts = {count, 0};
  all.allGather({bytes.get(), base::DType::u8, counts[static_cast<std::size_t>(all.rank())]},
                {bytes.get(), base::DType::u8, count}, counts);
  EXPECT_EQ(bytes.get()[0], 1);
  EXPECT_EQ(bytes.get()[count / 2], 2);
  EXPECT_EQ(bytes.get()[count - 1], 3);
}

}  // namespace
}  // namespace tandem::test
