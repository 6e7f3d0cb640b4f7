// Layouts by enumeration: whatever the numbers, all ranks together hold every element, and each is spoken for once.

#include "common/sharding/layout.h"

#include <gtest/gtest.h>

#include <numeric>

namespace tandem::sharding {
namespace {

TEST(EvenShare, dealsEverythingOutInOrderAndAsEqualAsCanBe) {
  for (std::int64_t count = 0; count <= 20; ++count) {
    for (int ranks = 1; ranks <= 9; ++ranks) {
      std::int64_t end = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Range share = evenShare(count, ranks, rank);
        EXPECT_EQ(share.begin, end);
        EXPECT_GE(share.count, count / ranks);
        EXPECT_LE(share.count, (count + ranks - 1) / ranks);
        end = share.end();
      }
      EXPECT_EQ(end, count);
    }
  }
}

// A query head reads key-value head `head / group`, in the model and on its rank.
TEST(HeadShare, givesEachRankTheKeysThatItsQueriesRead) {
  for (std::int64_t kvHeads = 1; kvHeads <= 5; ++kvHeads) {
    for (std::int64_t group = 1; group <= 6; ++group) {
      const std::int64_t heads = kvHeads * group;
      for (int ranks = 1; ranks <= heads; ++ranks) {
        std::int64_t end = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          SCOPED_TRACE(std::to_string(heads) + "/" + std::to_string(kvHeads) + " heads, rank " + std::to_string(rank) +
                       " of " + std::to_string(ranks));
          const HeadShare share = headShare(heads, kvHeads, ranks, rank);
          EXPECT_EQ(share.heads.begin, end);
          ASSERT_GT(share.heads.count, 0);
          ASSERT_EQ(share.heads.count % share.kvHeads.count, 0) << "as the kernels share heads out";
          const std::int64_t localGroup = share.heads.count / share.kvHeads.count;
          for (std::int64_t head = 0; head < share.heads.count; ++head) {
            EXPECT_EQ(share.kvHeads.begin + head / localGroup, (share.heads.begin + head) / group);
          }
          end = share.heads.end();
        }
        EXPECT_EQ(end, heads);
      }
    }
  }
}

TEST(HeadShare, namesTheRanksThatHoldTheSameKeys) {
  for (std::int64_t kvHeads = 1; kvHeads <= 4; ++kvHeads) {
    for (int ranks = 1; ranks <= 3 * kvHeads; ++ranks) {
      for (int rank = 0; rank < ranks; ++rank) {
        const HeadShare own = headShare(3 * kvHeads, kvHeads, ranks, rank);
        for (int other = 0; other < ranks; ++other) {
          const bool isHolder = other >= own.firstHolder && other < own.firstHolder + own.holders;
          const HeadShare others = headShare(3 * kvHeads, kvHeads, ranks, other);
          EXPECT_EQ(isHolder, others.kvHeads == own.kvHeads);
        }
      }
    }
  }
}

// How often each element of the whole is reached by the strips of a part, cut into runs of any length.
void countElements(const Part& part, std::vector<int>& counts) {
  for (const std::int64_t length : {std::int64_t{1000}, std::int64_t{7}}) {
    std::fill(counts.begin(), counts.end(), 0);
    std::int64_t expectedBegin = 0;
    for (std::int64_t begin = 0; begin < part.shape().count(); begin += length) {
      const std::int64_t count = std::min(length, part.shape().count() - begin);
      for (const Strip& strip : part.strips(begin, count)) {
        EXPECT_EQ(strip.partBegin, expectedBegin) << "strips follow each other in the part";
        for (std::int64_t i = 0; i < strip.repeats; ++i) {
          for (std::int64_t j = 0; j < strip.count; ++j) {
            ++counts[static_cast<std::size_t>(strip.wholeBegin + i * strip.stride + j)];
          }
        }
        expectedBegin += strip.count * strip.repeats;
      }
    }
    EXPECT_EQ(expectedBegin, part.shape().count());
  }
}

TEST(Part, stripsReachWhatItsRangesSay) {
  const base::Shape shape{11, 6};
  std::vector<int> counts(66);
  countElements(Part(shape, 0, {{{1, 3}, 0, 1}, {{7, 2}, 0, 1}}, 0), counts);
  for (std::int64_t at = 0; at < 66; ++at) {
    const std::int64_t row = at / 6;
    EXPECT_EQ(counts[static_cast<std::size_t>(at)], (row >= 1 && row < 4) || (row >= 7 && row < 9) ? 1 : 0) << at;
  }
  countElements(Part(shape, 1, {{{2, 3}, 0, 1}}, 0), counts);
  for (std::int64_t at = 0; at < 66; ++at) {
    EXPECT_EQ(counts[static_cast<std::size_t>(at)], at % 6 >= 2 && at % 6 < 5 ? 1 : 0) << at;
  }
}

TEST(Part, wholeColumnsAreOneStrip) {
  const Part part({100, 6}, 1, {{{2, 3}, 0, 1}}, 0);
  const std::vector<Strip> strips = part.strips(0, 300);
  ASSERT_EQ(strips.size(), 1u);
  EXPECT_EQ(strips[0].repeats, 100);
  EXPECT_EQ(part.strips(1, 298).size(), 3u) << "the rest of a row, whole rows, the beginning of one";
}

TEST(Part, ofNothingIsEmpty) {
  const Part part({5}, 0, {{{0, 0}, 0, 1}}, 1);
  EXPECT_TRUE(part.empty());
  EXPECT_TRUE(part.held().empty());
  EXPECT_EQ(part.shape(), (base::Shape{0}));
}

TEST(Part, tellsWhichElementsHaveWhichHolders) {
  const Part part({10, 2}, 0, {{{0, 3}, 1, 1}, {{6, 2}, 0, 4}}, 1);
  const auto held = part.held();
  ASSERT_EQ(held.size(), 2u);
  EXPECT_EQ(held[0].elements, (Range{0, 6}));
  EXPECT_EQ(held[1].elements, (Range{6, 4}));
  EXPECT_EQ(held[1].holders, 4);
}

}  // namespace
}  // namespace tandem::sharding
