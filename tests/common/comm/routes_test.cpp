// Every way that a reduce-scatter and an all-gather can go gives what the contract says: the same sums, whatever the
// sizes of the pieces, in place or not, one after the other or all under way.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "common/comm/detail/hierarchy.h"
#include "common/comm/detail/route_table.h"
#include "common/comm/detail/routes.h"
#include "common/comm/routed.h"
#include "tests/common/comm/element_values.h"
#include "tests/common/comm/piece_limit.h"
#include "tests/mpi_test.h"

namespace tandem::test {
namespace {

using comm::Collective;
using comm::Route;

class Routes : public WithPieces {
 protected:
  Routes() {
    for (const Route route : {Route::library, Route::ring, Route::halving, Route::hierarchical}) {
      routed.push_back(comm::makeRouted(world(), {.route = route}));
    }
  }
  std::vector<std::unique_ptr<comm::Communicator>> routed;
  const int rank = world().rank();
  const int ranks = world().size();
};
INSTANTIATE_TEST_SUITE_P(, Routes, pieceLimits, pieceName);

// Counts of pieces around nothing, one, and what is cut into segments.
std::vector<std::vector<std::int64_t>> manyCounts(int ranks) {
  std::vector<std::vector<std::int64_t>> all;
  for (int rotation = 0; rotation < ranks; ++rotation) all.push_back(unevenCounts(ranks, rotation));
  for (const std::int64_t each : {0, 1, 2, 41}) all.emplace_back(static_cast<std::size_t>(ranks), each);
  all.emplace_back(static_cast<std::size_t>(ranks), 0).back() = 1;
  return all;
}

void expectSums(comm::Communicator& all, const std::vector<std::int64_t>& counts, DType type, bool inPlace) {
  const int rank = all.rank(), ranks = all.size();
  const std::int64_t total = sumOf(counts, ranks), begin = sumOf(counts, rank);
  const std::int64_t own = counts[static_cast<std::size_t>(rank)];
  Elements given(type, total), separate(type, own);
  for (int i = 0; i < total; ++i) given.set(i, i % 20 + rank);
  all.reduceScatter(given.buffer(), inPlace ? given.part(begin, own) : separate.buffer(), counts);
  for (int i = 0; i < total; ++i) {
    const bool isOwn = i >= begin && i < begin + own;
    const int expected = ranks * (i % 20) + ranks * (ranks - 1) / 2;
    if (isOwn) {
      EXPECT_TRUE(inPlace ? given.holds(i, expected) : separate.holds(i - begin, expected)) << all.description();
    }
    if (!isOwn || !inPlace) {
      EXPECT_TRUE(given.holds(i, i % 20 + rank)) << all.description() << " changed what it was given";
    }
  }
}

void expectGathered(comm::Communicator& all, const std::vector<std::int64_t>& counts, DType type, bool inPlace) {
  const int rank = all.rank(), ranks = all.size();
  const std::int64_t total = sumOf(counts, ranks), begin = sumOf(counts, rank);
  const std::int64_t own = counts[static_cast<std::size_t>(rank)];
  Elements received(type, total), separate(type, own);
  for (int i = 0; i < own; ++i) {
    (inPlace ? received : separate).set(inPlace ? begin + i : i, static_cast<int>(begin) + i);
  }
  all.allGather(inPlace ? received.part(begin, own) : separate.buffer(), received.buffer(), counts);
  for (int i = 0; i < total; ++i) EXPECT_TRUE(received.holds(i, i)) << all.description() << " element " << i;
}

void expectSumsEverywhere(comm::Communicator& all, std::int64_t count, DType type) {
  const int rank = all.rank(), ranks = all.size();
  Elements blocking(type, count), started(type, count);
  for (int i = 0; i < count; ++i) {
    blocking.set(i, i % 20 + rank);
    started.set(i, i % 20 + rank + 1);
  }
  const auto request = all.startAllReduce(started.buffer());
  all.allReduce(blocking.buffer());
  request->wait();
  for (int i = 0; i < count; ++i) {
    const int expected = ranks * (i % 20) + ranks * (ranks - 1) / 2;
    EXPECT_TRUE(blocking.holds(i, expected)) << all.description() << " element " << i;
    EXPECT_TRUE(started.holds(i, expected + ranks)) << all.description() << " element " << i;
  }
}

TEST_P(Routes, allReducesOfAnySizeGiveTheSameSums) {
  for (const auto& all : routed) {
    for (const std::int64_t count : {0, 1, 3, 100, 1001}) {
      for (const DType type : {DType::f32, DType::bf16, DType::i64}) expectSumsEverywhere(*all, count, type);
    }
    std::vector<float> values(5, static_cast<float>(rank + 1));
    all->allReduce({values.data(), DType::f32, 5}, comm::Reduction::maximum);
    EXPECT_EQ(values, std::vector<float>(5, static_cast<float>(ranks)));
  }
}

TEST_P(Routes, allGiveTheSameForPiecesOfAnySize) {
  for (const auto& all : routed) {
    for (const auto& counts : manyCounts(ranks)) {
      for (const bool inPlace : {false, true}) {
        for (const DType type : {DType::f32, DType::bf16, DType::i64, DType::u8}) {
          expectSums(*all, counts, type, inPlace);
          expectGathered(*all, counts, type, inPlace);
        }
      }
    }
  }
}

TEST_P(Routes, bf16SumsAreRoundedOnceOnAllOfThem) {
  // 256 + 1 is 256 in bfloat16, so a sum that rounds at every step stays at 256.
  const base::BFloat16 mine(rank == 0 ? 256.0f : 1.0f);
  const base::BFloat16 expected(256.0f + static_cast<float>(ranks - 1));
  for (const auto& all : routed) {
    std::vector<base::BFloat16> given(static_cast<std::size_t>(ranks * 3), mine), received(3);
    const std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks), 3);
    all->reduceScatter({given.data(), DType::bf16, ranks * 3}, {received.data(), DType::bf16, 3}, counts);
    for (const base::BFloat16 value : received) EXPECT_EQ(value.bits, expected.bits) << all->description();
  }
}

TEST_P(Routes, manyExchangesAreUnderWayAtOnce) {
  for (const auto& all : routed) {
    constexpr int many = 5;
    const auto counts = unevenCounts(ranks, 1);
    const std::int64_t total = sumOf(counts, ranks), begin = sumOf(counts, rank);
    const std::int64_t own = counts[static_cast<std::size_t>(rank)];
    std::vector<Elements> buffers;
    for (int k = 0; k < many; ++k) {
      Elements& buffer = buffers.emplace_back(DType::f32, total);
      for (int i = 0; i < total; ++i) buffer.set(i, i + k);
    }
    std::vector<std::unique_ptr<comm::Request>> requests;
    for (Elements& buffer : buffers) {
      requests.push_back(all->startReduceScatter(buffer.buffer(), buffer.part(begin, own), counts));
    }
    // From the last to the first, some of them by testing alone.
    for (int k = many - 1; k >= 0; --k) {
      comm::Request& request = *requests[static_cast<std::size_t>(k)];
      while (k % 2 == 0 && !request.test()) {
      }
      request.wait();
      EXPECT_TRUE(request.test());
    }
    for (int k = 0; k < many; ++k) {
      for (int i = 0; i < own; ++i) {
        EXPECT_TRUE(buffers[static_cast<std::size_t>(k)].holds(begin + i, ranks * (static_cast<int>(begin) + i + k)));
      }
    }
  }
}

TEST_P(Routes, sumsHaveTheSameBitsEveryTime) {
  const std::int64_t total = 100 * ranks;
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks), 100);
  for (const auto& all : routed) {
    std::vector<float> sums[2];
    for (auto& sum : sums) {
      std::vector<float> given(static_cast<std::size_t>(total));
      for (std::size_t i = 0; i < given.size(); ++i) {
        given[i] = std::sin(static_cast<float>(i) + 0.37f * static_cast<float>(rank)) * 1e3f;
      }
      sum.resize(100);
      all->reduceScatter({given.data(), DType::f32, total}, {sum.data(), DType::f32, 100}, counts);
    }
    EXPECT_EQ(sums[0], sums[1]) << all->description();
  }
}

// The furthest that the sums of this rank's piece are from the exact ones.
float furthestFromExact(comm::Communicator& all) {
  const std::int64_t each = 50, total = each * all.size();
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(all.size()), each);
  std::vector<float> given(static_cast<std::size_t>(total)), received(static_cast<std::size_t>(each));
  const auto value = [&](std::int64_t i, int of) { return 1.0f + static_cast<float>(i % 17 + of) / 37.0f; };
  for (std::int64_t i = 0; i < total; ++i) given[static_cast<std::size_t>(i)] = value(i, all.rank());
  all.reduceScatter({given.data(), DType::f32, total}, {received.data(), DType::f32, each}, counts);
  float furthest = 0;
  for (std::int64_t i = 0; i < each; ++i) {
    float exact = 0;
    for (int other = 0; other < all.size(); ++other) exact += value(all.rank() * each + i, other);
    const float error = std::abs(received[static_cast<std::size_t>(i)] - exact);
    EXPECT_LE(error, static_cast<float>(all.size()) * exact / 256);
    furthest = std::max(furthest, error);
  }
  return furthest;
}

TEST_P(Routes, inBfloat16OnTheWireKeepThreeDigitsOfGradientsAndAllOfOtherSums) {
  for (const Route route : {Route::ring, Route::halving}) {
    const auto all = comm::makeRouted(world(), {.route = route, .bf16OnWire = true});
    EXPECT_LE(furthestFromExact(*all), 1e-5f) << "sums that are no gradients were rounded";
    all->carryGradients();
    const bool isOurs = comm::routeOf(*all, Collective::reduceScatter, 1) != Route::library;
    EXPECT_EQ(furthestFromExact(*all) > 1e-5f, isOurs && ranks > 1)
        << "nothing was rounded on the wire, or something that should not";
    const std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks), 50);
    expectGathered(*all, counts, DType::f32, true);  // weights are never rounded
    const auto part = all->split(0, rank);
    EXPECT_LE(furthestFromExact(*part), 1e-5f) << "a group that was split off rounds by itself";
  }
}

TEST_P(Routes, groupsThatAreSplitOffAreRoutedToo) {
  const auto ring = comm::makeRouted(world(), {.route = Route::ring});
  const auto part = ring->split(rank % 2, rank);
  EXPECT_EQ(comm::routeOf(*part, Collective::allGather, 1), part->size() > 1 ? Route::ring : Route::library);
  for (const auto& counts : manyCounts(part->size())) {
    expectSums(*part, counts, DType::f32, true);
    expectGathered(*part, counts, DType::f32, false);
  }
}

TEST_P(Routes, throughTwoNodesOfTwoRanksGiveTheSameSums) {
  if (ranks != 4) GTEST_SKIP() << "needs 4 ranks";
  const comm::detail::Hierarchy nodes{world().split(rank / 2, rank), world().split(rank % 2, rank)};
  for (const auto& counts : manyCounts(ranks)) {
    const std::int64_t total = sumOf(counts, ranks), begin = sumOf(counts, rank);
    const std::int64_t own = counts[static_cast<std::size_t>(rank)];
    Elements given(DType::f32, total), all(DType::f32, total);
    for (int i = 0; i < total; ++i) given.set(i, i % 20 + rank);
    comm::detail::hierarchicalReduceScatter(nodes, 1, false, given.buffer(), all.part(begin, own), counts).wait();
    for (int i = 0; i < own; ++i) EXPECT_TRUE(all.holds(begin + i, 4 * static_cast<int>((begin + i) % 20) + 6));
    comm::detail::hierarchicalAllGather(nodes, 2, all.part(begin, own), all.buffer(), counts).wait();
    for (int i = 0; i < total; ++i) EXPECT_TRUE(all.holds(i, 4 * (i % 20) + 6)) << i;
  }
}

TEST(MeasuredRoutes, giveTheSameSumsAndAreAgreedOnByAllRanks) {
  const auto all = comm::makeRouted(world(), {.route = Route::automatic});
  for (const auto& counts : manyCounts(all->size())) {
    expectSums(*all, counts, DType::f32, true);
    expectGathered(*all, counts, DType::f32, false);
  }
  for (const std::int64_t count : {0, 1000, 100'000}) expectSumsEverywhere(*all, count, DType::f32);
  for (const auto collective :
       {Collective::reduceScatter, Collective::allGather, Collective::allReduce, Collective::startedAllReduce}) {
    for (const std::int64_t bytes : {0, 1000, 100'000, 100'000'000}) {
      const auto own = static_cast<std::int64_t>(comm::routeOf(*all, collective, bytes));
      EXPECT_EQ(comm::allReduceScalar(world(), own, comm::Reduction::maximum), own);
      EXPECT_NE(comm::routeOf(*all, collective, bytes), Route::automatic);
    }
  }
}

using comm::detail::RouteTable;

RouteTable tableOf(Route small, Route large) {
  return RouteTable({{.bytes = 4096, .fastest = {small, small, small, small}},
                     {.bytes = 1 << 20, .fastest = {large, large, large, small}}});
}

TEST(RouteTables, giveTheWayOfTheSizeThatIsNearestInProportion) {
  const RouteTable table = tableOf(Route::library, Route::ring);
  EXPECT_EQ(table.fastest(Collective::reduceScatter, 0), Route::library);
  EXPECT_EQ(table.fastest(Collective::reduceScatter, 60'000), Route::library);
  EXPECT_EQ(table.fastest(Collective::reduceScatter, 70'000), Route::ring);
  EXPECT_EQ(table.fastest(Collective::allGather, 1 << 30), Route::ring);
  EXPECT_EQ(table.fastest(Collective::startedAllReduce, 1 << 30), Route::library);
  EXPECT_EQ(table.text(),
            "reduce-scatter: library to 4.0 KiB, ring; all-gather: library to 4.0 KiB, ring; all-reduce: library to "
            "4.0 KiB, ring; all-reduce beside computing: library");
}

TEST(RouteTables, areMeasuredOncePerKindAndAgreedOnByRanksThatMeasuredApart) {
  comm::detail::KnownTables known;
  int measured = 0;
  const auto find = [&](comm::Communicator& group, const std::string& kind, Route large) {
    return known.find(group, kind, [&] {
      ++measured;
      return tableOf(Route::library, large);
    });
  };
  // Each rank for itself, with another result.
  const auto alone = world().split(world().rank(), 0);
  const Route own = world().rank() == 0 ? Route::ring : Route::hierarchical;
  EXPECT_EQ(find(*alone, "exact", own).fastest(Collective::allGather, 1 << 20), own);
  EXPECT_EQ(find(*alone, "exact", Route::library).fastest(Collective::allGather, 1 << 20), own);
  EXPECT_EQ(measured, 1);
  find(*alone, "rounded", Route::ring);
  EXPECT_EQ(measured, 2);
  if (world().size() == 1) return;
  // Together: nobody has measured that yet, then all have, and rank 0's holds.
  find(world(), "exact", own);
  EXPECT_EQ(measured, 3);
  EXPECT_EQ(find(world(), "exact", Route::library).fastest(Collective::allGather, 1 << 20), Route::ring);
  EXPECT_EQ(measured, 3);
}

TEST(RouteNames, areReadAndRefused) {
  for (const char* text : {"auto", "library", "ring", "halving", "hierarchical"}) {
    EXPECT_EQ(comm::name(comm::parseRoute(text)), text);
  }
  try {
    comm::parseRoute("tree");
    ADD_FAILURE() << "nothing was refused";
  } catch (const base::Error& error) {
    EXPECT_EQ(error.kind(), base::ErrorKind::usage);
    EXPECT_NE(error.message().find("'tree'; it can be auto, library, ring"), std::string::npos);
  }
}

}  // namespace
}  // namespace tandem::test
