#include "common/data/sample_order.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "tests/common/data/expect_error.h"

namespace tandem::data {
namespace {

using base::ErrorKind;

TEST(SampleOrder, takesEveryWindowOnceAnEpochInAnotherOrderEachTime) {
  const double weight[] = {1.0};
  const SampleOrder order(1, {97}, weight);
  std::vector<std::vector<std::int64_t>> epochs;
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<std::int64_t> windows;
    for (std::int64_t i = 0; i < 97; ++i) {
      const Sample sample = order(epoch * 97 + i);
      EXPECT_EQ(sample.epoch, epoch);
      windows.push_back(sample.window);
    }
    EXPECT_EQ(std::set(windows.begin(), windows.end()).size(), 97u);
    EXPECT_EQ(*std::max_element(windows.begin(), windows.end()), 96);
    EXPECT_EQ(std::count(epochs.begin(), epochs.end(), windows), 0);
    epochs.push_back(windows);
  }
}

TEST(SampleOrder, dependsOnTheSeed) {
  const double weight[] = {1.0};
  const SampleOrder one(1, {1000}, weight), two(2, {1000}, weight);
  int same = 0;
  for (std::int64_t i = 0; i < 1000; ++i) same += one(i).window == two(i).window;
  EXPECT_LT(same, 20);
}

// Frozen: a run that is resumed with a later version must see the same samples.
TEST(SampleOrder, isTheOneThatRunsBeforeHadToo) {
  const double weights[] = {3.0, 1.0};
  const SampleOrder order(42, {1000, 10}, weights);
  std::vector<Sample> samples;
  for (std::int64_t i = 0; i < 8; ++i) samples.push_back(order(i));
  samples.push_back(order(123456789));
  const std::vector<Sample> golden = {{0, 0, 382}, {0, 0, 973}, {1, 0, 5},   {0, 0, 670},    {0, 0, 312},
                                      {0, 0, 640}, {1, 0, 8},   {0, 0, 586}, {0, 92592, 543}};
  for (std::size_t i = 0; i < golden.size(); ++i) EXPECT_EQ(samples[i], golden[i]) << "sample " << i;
}

TEST(SampleOrder, datasetsOfOneSizeAreNotGoneThroughInStep) {
  const double weights[] = {1.0, 1.0};
  const SampleOrder order(7, {500, 500}, weights);
  int same = 0;
  for (std::int64_t i = 0; i < 500; ++i) same += order(2 * i).window == order(2 * i + 1).window;
  EXPECT_LT(same, 15);
}

TEST(MixtureOrder, keepsTheProportionsExactlyAndEvenly) {
  const std::vector<std::vector<double>> mixtures = {
      {3, 1}, {0.7, 0.2, 0.1}, {1, 1, 1}, {0.5, 1.0 / 3, 0.123456}, {1000, 1}, {1, 2, 3, 4, 5, 6, 7}};
  for (const std::vector<double>& weights : mixtures) {
    const MixtureOrder order(weights);
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    std::vector<std::int64_t> seen(weights.size(), 0);
    for (std::int64_t i = 0; i < 20000; ++i) {
      const MixtureOrder::Turn turn = order(i);
      const auto d = static_cast<std::size_t>(turn.dataset);
      EXPECT_EQ(turn.ordinal, seen[d]++);  // no ordinal is left out or comes twice
      for (std::size_t e = 0; e < weights.size(); ++e) {
        const double due = weights[e] / sum * static_cast<double>(i + 1);
        const double allowed = static_cast<double>(weights.size() - 1) + static_cast<double>(i) / 65536;
        ASSERT_LT(std::abs(static_cast<double>(seen[e]) - due), std::max(1.0, allowed)) << "after sample " << i;
      }
    }
  }
}

TEST(MixtureOrder, goesOnExactlyBeyondItsCycle) {
  const double weights[] = {2.0, 1.0};
  const MixtureOrder order(weights);
  EXPECT_EQ(order(3'000'000'000'000).ordinal, 2'000'000'000'000);
}

TEST(MixtureOrder, weightsWithoutSenseAreUsageErrors) {
  for (const std::vector<double>& weights :
       std::vector<std::vector<double>>{{}, {0.0}, {1, -1}, {1, NAN}, {1, INFINITY}, {1e9, 1}}) {
    expectError(ErrorKind::usage, {}, [&] { const MixtureOrder order(weights); });
  }
}

TEST(Windows, trainingLeavesTheShortLastOneOutUnlessItIsTheOnlyOne) {
  EXPECT_EQ(trainingWindows(100, 10), 10);
  EXPECT_EQ(trainingWindows(109, 10), 10);
  EXPECT_EQ(trainingWindows(9, 10), 1);
  EXPECT_EQ(evaluationWindows(100, 10), 10);
  EXPECT_EQ(evaluationWindows(101, 10), 11);
  EXPECT_EQ(evaluationWindows(9, 10), 1);
}

}  // namespace
}  // namespace tandem::data
