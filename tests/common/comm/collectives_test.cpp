#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <numeric>
#include <thread>

#include "tests/common/comm/element_values.h"
#include "tests/common/comm/piece_limit.h"
#include "tests/mpi_test.h"

namespace tandem::test {
namespace {

using comm::Reduction;

class Collectives : public WithPieces {
 protected:
  comm::Communicator& all = world();
  const int rank = all.rank();
  const int ranks = all.size();
};
INSTANTIATE_TEST_SUITE_P(, Collectives, pieceLimits, pieceName);

TEST_P(Collectives, allReduceSumsEveryType) {
  for (const DType type : allTypes) {
    Elements values(type, 29);
    for (int i = 0; i < 29; ++i) values.set(i, i % 5 + rank);
    all.allReduce(values.buffer());
    for (int i = 0; i < 29; ++i) {
      EXPECT_TRUE(values.holds(i, ranks * (i % 5) + ranks * (ranks - 1) / 2)) << base::name(type) << " " << i;
    }
  }
}

TEST_P(Collectives, allReduceFindsMaximumAndMinimumOfEveryType) {
  for (const DType type : allTypes) {
    Elements largest(type, 9), smallest(type, 9);
    for (int i = 0; i < 9; ++i) {
      largest.set(i, (i + rank) % ranks + i);
      smallest.set(i, (i + rank) % ranks + i);
    }
    all.allReduce(largest.buffer(), Reduction::maximum);
    all.allReduce(smallest.buffer(), Reduction::minimum);
    for (int i = 0; i < 9; ++i) {
      EXPECT_TRUE(largest.holds(i, i + ranks - 1)) << base::name(type);
      EXPECT_TRUE(smallest.holds(i, i)) << base::name(type);
    }
  }
}

TEST_P(Collectives, bf16SumsAreRoundedOnceFromFloat32) {
  // 256 + 1 is 256 in bfloat16, so a sum that rounds at every step stays at 256.
  const base::BFloat16 mine(rank == 0 ? 256.0f : 1.0f);
  const base::BFloat16 expected(256.0f + static_cast<float>(ranks - 1));
  std::vector<base::BFloat16> values(40, mine);
  all.allReduce({values.data(), DType::bf16, 40});
  for (const base::BFloat16 value : values) EXPECT_EQ(value.bits, expected.bits);

  std::vector<base::BFloat16> given(static_cast<std::size_t>(ranks * 3), mine);
  std::vector<base::BFloat16> received(3);
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks), 3);
  all.reduceScatter({given.data(), DType::bf16, ranks * 3}, {received.data(), DType::bf16, 3}, counts);
  for (const base::BFloat16 value : received) EXPECT_EQ(value.bits, expected.bits);
}

TEST_P(Collectives, sumsHaveTheSameBitsOnEveryRankAndEveryTime) {
  auto values = [&] {
    std::vector<float> result(1000);
    for (std::size_t i = 0; i < result.size(); ++i)
      result[i] = std::sin(static_cast<float>(i) + 0.37f * static_cast<float>(rank)) * 1e3f;
    return result;
  };
  std::vector<float> first = values(), second = values();
  all.allReduce({first.data(), DType::f32, 1000});
  all.allReduce({second.data(), DType::f32, 1000});
  EXPECT_EQ(first, second);
  std::vector<float> ofRankZero = first;
  all.broadcast({ofRankZero.data(), DType::f32, 1000}, 0);
  EXPECT_EQ(first, ofRankZero);
}

TEST_P(Collectives, broadcastReachesEveryRankFromEveryRoot) {
  for (const DType type : allTypes) {
    for (int root = 0; root < ranks; ++root) {
      Elements values(type, 17);
      for (int i = 0; i < 17; ++i) values.set(i, rank == root ? 3 * i + root : 0);
      all.broadcast(values.buffer(), root);
      for (int i = 0; i < 17; ++i) EXPECT_TRUE(values.holds(i, 3 * i + root)) << base::name(type);
    }
  }
}

TEST_P(Collectives, reduceScatterTakesUnevenCounts) {
  for (const DType type : allTypes) {
    for (int rotation = 0; rotation < ranks; ++rotation) {
      const auto counts = unevenCounts(ranks, rotation);
      const std::int64_t total = sumOf(counts, ranks), begin = sumOf(counts, rank);
      const std::int64_t own = counts[static_cast<std::size_t>(rank)];
      for (const bool inPlace : {false, true}) {
        Elements given(type, total), separate(type, own);
        for (int i = 0; i < total; ++i) given.set(i, i % 20 + rank);
        all.reduceScatter(given.buffer(), inPlace ? given.part(begin, own) : separate.buffer(), counts);
        for (int i = 0; i < own; ++i) {
          const int expected = ranks * static_cast<int>((begin + i) % 20) + ranks * (ranks - 1) / 2;
          EXPECT_TRUE(inPlace ? given.holds(begin + i, expected) : separate.holds(i, expected))
              << base::name(type) << (inPlace ? " in place, element " : " element ") << i;
        }
      }
    }
  }
}

TEST_P(Collectives, reduceScatterLeavesWhatItWasGivenUntouched) {
  const auto counts = unevenCounts(ranks, 0);
  const std::int64_t total = sumOf(counts, ranks);
  Elements given(DType::f32, total), received(DType::f32, counts[static_cast<std::size_t>(rank)]);
  for (int i = 0; i < total; ++i) given.set(i, i + rank);
  all.reduceScatter(given.buffer(), received.buffer(), counts);
  for (int i = 0; i < total; ++i) EXPECT_TRUE(given.holds(i, i + rank));
}

TEST_P(Collectives, allGatherTakesUnevenCounts) {
  for (const DType type : allTypes) {
    for (int rotation = 0; rotation < ranks; ++rotation) {
      const auto counts = unevenCounts(ranks, rotation);
      const std::int64_t total = sumOf(counts, ranks), begin = sumOf(counts, rank);
      const std::int64_t own = counts[static_cast<std::size_t>(rank)];
      for (const bool inPlace : {false, true}) {
        Elements received(type, total), separate(type, own);
        for (int i = 0; i < own; ++i)
          (inPlace ? received : separate).set(inPlace ? begin + i : i, static_cast<int>(begin) + i);
        all.allGather(inPlace ? received.part(begin, own) : separate.buffer(), received.buffer(), counts);
        for (int i = 0; i < total; ++i)
          EXPECT_TRUE(received.holds(i, i)) << base::name(type) << " in place: " << inPlace;
      }
    }
  }
}

TEST_P(Collectives, allToAllSendsEveryRankItsPart) {
  // Rank r gives rank d exactly r + 2 d elements.
  std::vector<std::int64_t> givenCounts, receivedCounts;
  for (int other = 0; other < ranks; ++other) {
    givenCounts.push_back(rank + 2 * other);
    receivedCounts.push_back(other + 2 * rank);
  }
  for (const DType type : allTypes) {
    Elements given(type, sumOf(givenCounts, ranks)), received(type, sumOf(receivedCounts, ranks));
    std::int64_t at = 0;
    for (int other = 0; other < ranks; ++other) {
      for (int i = 0; i < givenCounts[static_cast<std::size_t>(other)]; ++i)
        given.set(at++, 20 * rank + 5 * other + i % 5);
    }
    all.allToAll(given.buffer(), givenCounts, received.buffer(), receivedCounts);
    at = 0;
    for (int other = 0; other < ranks; ++other) {
      for (int i = 0; i < receivedCounts[static_cast<std::size_t>(other)]; ++i) {
        EXPECT_TRUE(received.holds(at++, 20 * other + 5 * rank + i % 5)) << base::name(type);
      }
    }
  }
}

TEST_P(Collectives, messagesArriveInTheirOrder) {
  const int partner = rank ^ 1;
  if (partner >= ranks) return;
  for (const DType type : allTypes) {
    Elements first(type, 23), second(type, 23);
    if (rank < partner) {
      for (int i = 0; i < 23; ++i) {
        first.set(i, i);
        second.set(i, i + 50);
      }
      all.send(first.buffer(), partner, 5);
      all.send(second.buffer(), partner, 5);
    } else {
      all.receive(first.buffer(), partner, 5);
      all.receive(second.buffer(), partner, 5);
    }
    for (int i = 0; i < 23; ++i) EXPECT_TRUE(first.holds(i, i) && second.holds(i, i + 50)) << base::name(type);
  }
}

TEST_P(Collectives, textsAreGatheredAndBroadcast) {
  const std::string mine(static_cast<std::size_t>(rank * 13), static_cast<char>('a' + rank));
  const std::vector<std::string> texts = comm::allGatherTexts(all, mine);
  ASSERT_EQ(std::ssize(texts), ranks);
  for (int other = 0; other < ranks; ++other) {
    EXPECT_EQ(texts[static_cast<std::size_t>(other)],
              std::string(static_cast<std::size_t>(other * 13), static_cast<char>('a' + other)));
  }
  EXPECT_EQ(comm::broadcastText(all, rank == ranks - 1 ? "the last speaks" : "unheard", ranks - 1), "the last speaks");
  EXPECT_EQ(comm::allReduceScalar(all, std::int64_t{rank}, Reduction::maximum), ranks - 1);
  EXPECT_EQ(comm::allReduceScalar(all, 0.5), 0.5 * ranks);
}

TEST(Communicator, splitsByColourAndOrdersByKey) {
  comm::Communicator& all = world();
  const std::unique_ptr<comm::Communicator> half = all.split(all.rank() % 2, -all.rank());
  const int expectedSize = all.size() / 2 + (all.rank() % 2 == 0 ? all.size() % 2 : 0);
  ASSERT_EQ(half->size(), expectedSize);
  EXPECT_EQ(half->rank(), half->size() - 1 - all.rank() / 2);
  std::int64_t sum = 0;
  for (int other = all.rank() % 2; other < all.size(); other += 2) sum += other;
  EXPECT_EQ(comm::allReduceScalar(*half, std::int64_t{all.rank()}), sum);
}

TEST(Communicator, knowsTheRanksOfItsHost) {
  EXPECT_EQ(world().ranksOnThisHost(), world().size());
  EXPECT_EQ(world().split(world().rank(), 0)->ranksOnThisHost(), 1);
  EXPECT_NE(world().description().find("MPI"), std::string::npos);
}

TEST(Communicator, countsTheSecondsThatARankWaitsForOthers) {
  comm::Communicator& all = world();
  if (all.size() == 1) GTEST_SKIP() << "nobody to wait for";
  const std::unique_ptr<comm::Communicator> part = all.split(0, all.rank());
  const double before = all.secondsWaited();
  if (all.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  part->barrier();
  if (all.rank() != 0) {
    EXPECT_GT(all.secondsWaited() - before, 0.05);
  }
  EXPECT_EQ(all.secondsWaited(), part->secondsWaited());
}

}  // namespace
}  // namespace tandem::test
