#include "common/base/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace tandem::base {
namespace {

using Words = std::array<std::uint32_t, 4>;

// The known-answer vectors of the Random123 distribution (kat_vectors, philox 4x32, 10 rounds). Its words stand low
// word first in our counter and key.
TEST(Philox, givesTheKnownAnswers) {
  EXPECT_EQ(philox(0, 0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(UINT64_MAX, UINT64_MAX, UINT64_MAX), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomStream, isAFunctionOfSeedPurposeAndPosition) {
  RandomStream first(7, 1), second(7, 1), otherPurpose(7, 2), otherSeed(8, 1);
  for (int i = 0; i < 9; ++i) {
    const std::uint32_t word = first.nextWord();
    EXPECT_EQ(word, philox(7, static_cast<std::uint64_t>(i) / 4, 1)[static_cast<std::size_t>(i % 4)]);
    EXPECT_EQ(word, second.nextWord());
    EXPECT_NE(word, otherPurpose.nextWord());
    EXPECT_NE(word, otherSeed.nextWord());
  }
  RandomStream copy = first;
  EXPECT_EQ(copy.nextWord(), first.nextWord());
}

TEST(RandomStream, uniformNumbersFillTheirRangeEvenly) {
  RandomStream stream(3, 0);
  double sum = 0;
  std::array<int, 10> counts{};
  for (int i = 0; i < 100'000; ++i) {
    const float value = stream.nextUniform();
    ASSERT_GE(value, 0.0f);
    ASSERT_LT(value, 1.0f);
    sum += value;
    ++counts[static_cast<std::size_t>(value * 10)];
  }
  EXPECT_NEAR(sum / 100'000, 0.5, 0.005);
  for (const int count : counts) EXPECT_NEAR(count, 10'000, 500);
}

TEST(RandomStream, numbersBelowABoundAreEven) {
  RandomStream stream(5, 0);
  std::array<int, 3> counts{};
  for (int i = 0; i < 30'000; ++i) ++counts[stream.nextBelow(3)];
  for (const int count : counts) EXPECT_NEAR(count, 10'000, 400);
  EXPECT_EQ(stream.nextBelow(1), 0u);
  for (int i = 0; i < 100; ++i) EXPECT_LT(stream.nextBelow((std::uint64_t{1} << 63) + 1), (std::uint64_t{1} << 63) + 1);
}

TEST(RandomStream, normalNumbersHaveTheirMoments) {
  RandomStream stream(9, 0);
  double sum = 0, squares = 0, fourth = 0;
  constexpr int count = 200'000;
  for (int i = 0; i < count; ++i) {
    const double x = stream.nextNormal();
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
  }
  EXPECT_NEAR(sum / count, 0.0, 0.01);
  EXPECT_NEAR(squares / count, 1.0, 0.02);
  EXPECT_NEAR(fourth / count, 3.0, 0.15);
}

TEST(Permutation, visitsEveryIndexOnce) {
  for (const std::uint64_t count : {1u, 2u, 3u, 4u, 5u, 16u, 17u, 1000u, 4096u, 4097u}) {
    for (const std::uint64_t epoch : {0u, 1u}) {
      const Permutation permutation(count, 42, epoch);
      std::vector<bool> seen(count, false);
      for (std::uint64_t i = 0; i < count; ++i) {
        const std::uint64_t image = permutation(i);
        ASSERT_LT(image, count);
        ASSERT_FALSE(seen[image]) << "twice " << image << " of " << count;
        seen[image] = true;
      }
    }
  }
}

TEST(Permutation, isAnotherOneForAnotherSeedOrEpoch) {
  const Permutation first(1000, 1, 0), sameAgain(1000, 1, 0), otherSeed(1000, 2, 0), otherEpoch(1000, 1, 1);
  int seedDiffers = 0, epochDiffers = 0, moved = 0;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(first(i), sameAgain(i));
    seedDiffers += first(i) != otherSeed(i);
    epochDiffers += first(i) != otherEpoch(i);
    moved += first(i) != i;
  }
  for (const int count : {seedDiffers, epochDiffers, moved}) EXPECT_GT(count, 980);
}

TEST(Permutation, reachesFarIndexesOfHugeSets) {
  const std::uint64_t count = (std::uint64_t{1} << 40) + 3;
  const Permutation permutation(count, 1, 0);
  std::uint64_t largest = 0;
  for (std::uint64_t i = 0; i < 100; ++i) {
    ASSERT_LT(permutation(i), count);
    largest = std::max(largest, permutation(i));
  }
  EXPECT_GT(largest, count / 2);
}

}  // namespace
}  // namespace tandem::base
