// Where parameters lie in the flat buffer and who owns what: every element once, whatever the numbers.

#include "common/sharding/flat_layout.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

namespace tandem::sharding {
namespace {

using Ownership = FlatLayout::Ownership;

// Sizes that divide by nothing, a few of them smaller than what a rank's share is aligned to.
const std::vector<FlatLayout::Named> uneven = {{"a", {7, 13}}, {"b", {5}},       {"c", {1}},    {"d", {31, 17}},
                                               {"e", {33}},    {"f", {100, 10}}, {"g", {2, 2}}, {"h", {257}}};

struct Case {
  int ranks;
  Ownership ownership;
  std::int64_t bucketElements;
};

class AnyLayout : public testing::TestWithParam<Case> {
 protected:
  FlatLayout layout() const { return {uneven, GetParam().ranks, GetParam().ownership, GetParam().bucketElements}; }
};

TEST_P(AnyLayout, ownsEveryElementOfEveryParameterOnce) {
  const FlatLayout all = layout();
  std::map<std::pair<std::int64_t, std::int64_t>, int> owners;
  for (int rank = 0; rank < all.ranks(); ++rank) {
    for (const OwnedRun& run : all.ownedRuns(rank)) {
      for (std::int64_t i = 0; i < run.count; ++i) ++owners[{run.parameter, run.begin + i}];
    }
  }
  std::int64_t elements = 0;
  for (const FlatParameter& parameter : all.parameters()) elements += parameter.count;
  EXPECT_EQ(static_cast<std::int64_t>(owners.size()), elements);
  for (const auto& [element, count] : owners) EXPECT_EQ(count, 1) << "parameter " << element.first;
}

TEST_P(AnyLayout, placesParametersAlignedInTheirOrderWithoutOverlap) {
  const FlatLayout all = layout();
  std::int64_t end = 0;
  for (std::size_t i = 0; i < uneven.size(); ++i) {
    const FlatParameter& parameter = all.parameters()[i];
    EXPECT_EQ(parameter.name, uneven[i].name);
    EXPECT_EQ(parameter.count, uneven[i].shape.count());
    EXPECT_EQ(parameter.offset % 16, 0);
    EXPECT_GE(parameter.offset, end);
    end = parameter.offset + parameter.count;
    EXPECT_GE(parameter.offset, all.bucketBegin(parameter.bucket));
    EXPECT_LE(end, all.bucketBegin(parameter.bucket) + all.bucketCount(parameter.bucket));
  }
  EXPECT_LE(end, all.count());
}

TEST_P(AnyLayout, runsLieInsideTheirPieceOfTheFlatBufferAndOfTheShard) {
  const FlatLayout all = layout();
  for (int rank = 0; rank < all.ranks(); ++rank) {
    std::int64_t shardEnd = 0;
    for (const OwnedRun& run : all.ownedRuns(rank)) {
      const FlatParameter& parameter = all.parameters()[static_cast<std::size_t>(run.parameter)];
      EXPECT_EQ(run.flatOffset, parameter.offset + run.begin);
      const std::int64_t begin = all.pieceBegin(parameter.bucket, rank);
      EXPECT_GE(run.flatOffset, begin);
      EXPECT_LE(run.flatOffset + run.count, begin + all.pieceCounts(parameter.bucket)[static_cast<std::size_t>(rank)]);
      EXPECT_EQ(run.shardOffset - all.pieceShardOffset(parameter.bucket, rank), run.flatOffset - begin);
      EXPECT_GE(run.shardOffset, shardEnd);
      shardEnd = run.shardOffset + run.count;
    }
    EXPECT_LE(shardEnd, all.shardCount(rank));
  }
}

TEST_P(AnyLayout, piecesMakeUpTheirBucketAndBucketsTheBuffer) {
  const FlatLayout all = layout();
  std::int64_t sum = 0, shards = 0;
  for (int bucket = 0; bucket < all.buckets(); ++bucket) {
    EXPECT_EQ(all.bucketBegin(bucket), sum);
    std::int64_t pieces = 0;
    for (const std::int64_t count : all.pieceCounts(bucket)) {
      EXPECT_GE(count, 0);
      EXPECT_EQ(count % 16, 0);
      pieces += count;
    }
    EXPECT_EQ(pieces, all.bucketCount(bucket));
    EXPECT_GT(pieces, 0);
    sum += pieces;
  }
  for (int rank = 0; rank < all.ranks(); ++rank) shards += all.shardCount(rank);
  EXPECT_EQ(sum, all.count());
  EXPECT_EQ(shards, all.count());
}

INSTANTIATE_TEST_SUITE_P(Layouts, AnyLayout,
                         testing::Values(Case{1, Ownership::anywhere, 1 << 20}, Case{2, Ownership::anywhere, 1 << 20},
                                         Case{3, Ownership::anywhere, 200}, Case{7, Ownership::anywhere, 1},
                                         Case{64, Ownership::anywhere, 500},
                                         Case{1, Ownership::wholeParameters, 1 << 20},
                                         Case{2, Ownership::wholeParameters, 300},
                                         Case{3, Ownership::wholeParameters, 1 << 20},
                                         Case{20, Ownership::wholeParameters, 1000}));

TEST(FlatLayout, bucketsHoldAtLeastTheElementsAskedForButTheLast) {
  const FlatLayout layout(uneven, 2, Ownership::anywhere, 200);
  ASSERT_GT(layout.buckets(), 2);
  for (int bucket = 0; bucket + 1 < layout.buckets(); ++bucket) EXPECT_GE(layout.bucketCount(bucket), 200);
}

TEST(FlatLayout, sharesAreEqualToAUnitOfAlignment) {
  const FlatLayout layout(uneven, 3, Ownership::anywhere, 1 << 20);
  for (const std::int64_t count : layout.pieceCounts(0)) EXPECT_LE(std::abs(3 * count - layout.count()), 3 * 16);
}

TEST(FlatLayout, wholeParametersAreNeverCut) {
  for (const int ranks : {1, 2, 3, 5, 9}) {
    const FlatLayout layout(uneven, ranks, Ownership::wholeParameters, 400);
    for (int rank = 0; rank < ranks; ++rank) {
      for (const OwnedRun& run : layout.ownedRuns(rank)) {
        EXPECT_EQ(run.begin, 0);
        EXPECT_EQ(run.count, layout.parameters()[static_cast<std::size_t>(run.parameter)].count);
      }
    }
  }
}

TEST(FlatLayout, equalParametersAreSharedOutEvenlyWhole) {
  std::vector<FlatLayout::Named> layers;
  for (int i = 0; i < 12; ++i) layers.push_back({"layer" + std::to_string(i), {64, 64}});
  const FlatLayout layout(layers, 4, Ownership::wholeParameters, 1 << 30);
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(layout.shardCount(rank), 3 * 64 * 64);
}

TEST(FlatLayout, findsParametersByName) {
  const FlatLayout layout(uneven, 2, Ownership::anywhere, 100);
  EXPECT_EQ(layout.indexOf("d"), 3);
  EXPECT_EQ(layout.indexOf("nothing"), -1);
}

}  // namespace
}  // namespace tandem::sharding
