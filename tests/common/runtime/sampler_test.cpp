// Which token comes next: by the options' definitions, and the same for a seed whatever else goes on.

#include "common/runtime/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "tests/common/data/expect_error.h"

namespace tandem::runtime {
namespace {

using Logits = std::vector<float>;

std::int32_t next(Sampler& sampler, Logits logits, const std::vector<std::int32_t>& history = {}) {
  return sampler.next(logits, history);
}

// How often each token is drawn.
std::map<std::int32_t, double> shares(const SamplingOptions& options, const Logits& logits, int draws = 20000) {
  Sampler sampler(options, 0);
  std::map<std::int32_t, double> result;
  for (int i = 0; i < draws; ++i) result[next(sampler, logits)] += 1.0 / draws;
  return result;
}

std::vector<std::int32_t> tokens(const SamplingOptions& options, const Logits& logits) {
  std::vector<std::int32_t> result;
  for (const auto& [token, share] : shares(options, logits, 3000)) result.push_back(token);
  return result;
}

// Probabilities 0.4, 0.3, 0.2, 0.1, in no order.
const Logits fourTokens = {std::log(0.2f), std::log(0.4f), std::log(0.1f), std::log(0.3f)};

TEST(Sampler, withoutTemperatureTakesTheMostLikelyAndOfEqualOnesTheFirst) {
  Sampler greedy({.temperature = 0}, 0);
  EXPECT_EQ(next(greedy, fourTokens), 1);
  EXPECT_EQ(next(greedy, {1, 5, 5, 2}), 1);
}

TEST(Sampler, atTemperatureOneDrawsByProbability) {
  const auto drawn = shares({.temperature = 1}, fourTokens);
  EXPECT_NEAR(drawn.at(0), 0.2, 0.02);
  EXPECT_NEAR(drawn.at(1), 0.4, 0.02);
  EXPECT_NEAR(drawn.at(2), 0.1, 0.02);
  EXPECT_NEAR(drawn.at(3), 0.3, 0.02);
}

TEST(Sampler, aHigherTemperatureFlattensAndALowerSharpens) {
  EXPECT_NEAR(shares({.temperature = 0.5f}, fourTokens).at(1), 0.16 / 0.30, 0.02);
  EXPECT_NEAR(shares({.temperature = 100}, fourTokens).at(2), 0.25, 0.02);
}

TEST(Sampler, aTinyTemperatureIsGreedyNotAnOverflow) {
  EXPECT_EQ(tokens({.temperature = 1e-38f}, {30, 80, -1e30f, 79}), std::vector<std::int32_t>{1});
}

TEST(Sampler, topKKeepsTheMostLikely) {
  EXPECT_EQ(tokens({.temperature = 1, .topK = 1}, fourTokens), std::vector<std::int32_t>{1});
  EXPECT_EQ(tokens({.temperature = 1, .topK = 2}, fourTokens), (std::vector<std::int32_t>{1, 3}));
  EXPECT_EQ(tokens({.temperature = 1, .topK = 99}, fourTokens).size(), 4u);
  EXPECT_NEAR(shares({.temperature = 1, .topK = 2}, fourTokens).at(1), 0.4 / 0.7, 0.02);
}

TEST(Sampler, tiesAtTheEdgeOfTopKGoToTheLowerTokens) {
  EXPECT_EQ(tokens({.temperature = 1, .topK = 2}, {1, 1, 1, 1}), (std::vector<std::int32_t>{0, 1}));
}

TEST(Sampler, topPKeepsTheFewestThatReachIt) {
  EXPECT_EQ(tokens({.temperature = 1, .topP = 0.39f}, fourTokens), std::vector<std::int32_t>{1});
  EXPECT_EQ(tokens({.temperature = 1, .topP = 0.5f}, fourTokens), (std::vector<std::int32_t>{1, 3}));
  EXPECT_EQ(tokens({.temperature = 1, .topP = 0.85f}, fourTokens), (std::vector<std::int32_t>{0, 1, 3}));
  EXPECT_EQ(tokens({.temperature = 1, .topP = 1e-30f}, fourTokens), std::vector<std::int32_t>{1});
}

TEST(Sampler, minPKeepsWhatIsThatFractionAsLikelyAsTheLikeliest) {
  EXPECT_EQ(tokens({.temperature = 1, .minP = 0.6f}, fourTokens), (std::vector<std::int32_t>{1, 3}));
  EXPECT_EQ(tokens({.temperature = 1, .minP = 0.3f}, fourTokens), (std::vector<std::int32_t>{0, 1, 3}));
  EXPECT_EQ(tokens({.temperature = 1, .minP = 1.0f}, fourTokens), std::vector<std::int32_t>{1});
}

TEST(Sampler, theRepetitionPenaltyMakesSeenTokensLessLikelyOnce) {
  Sampler greedy({.temperature = 0, .repetitionPenalty = 2}, 0);
  EXPECT_EQ(next(greedy, {3, 4}, {1}), 0) << "4 / 2 is below 3";
  EXPECT_EQ(next(greedy, {1.5f, 4}, {1, 1, 1}), 1) << "a token seen often is penalised once";
  EXPECT_EQ(next(greedy, {-3, -2}, {1}), 0) << "-2 * 2 is below -3";
  EXPECT_EQ(next(greedy, {3, 4}), 1);
}

TEST(Sampler, aSeedAndSequenceGiveTheSameTokensOthersGiveOthers) {
  auto draw = [](std::uint64_t seed, std::uint64_t sequence) {
    Sampler sampler({.temperature = 1, .seed = seed}, sequence);
    std::vector<std::int32_t> result;
    for (int i = 0; i < 50; ++i) result.push_back(next(sampler, fourTokens));
    return result;
  };
  EXPECT_EQ(draw(5, 2), draw(5, 2));
  EXPECT_NE(draw(5, 2), draw(5, 3));
  EXPECT_NE(draw(5, 2), draw(6, 2));
}

TEST(Sampler, logitsThatAreNoFiniteNumbersAreANumericError) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  for (const float temperature : {0.0f, 1.0f}) {
    for (const float bad : {nan, infinity, -infinity}) {
      Sampler sampler({.temperature = temperature}, 0);
      data::expectError(base::ErrorKind::numeric, {"logits"}, [&] { next(sampler, {1, bad, 2}); });
    }
  }
}

TEST(Sampler, optionsOutOfTheirRangeAreUsageErrorsThatNameTheOption) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  auto refuse = [](const SamplingOptions& options, const std::string& option) {
    data::expectError(base::ErrorKind::usage, {option}, [&] { check(options); });
  };
  refuse({.temperature = -1}, "--temperature");
  refuse({.temperature = nan}, "--temperature");
  refuse({.topK = -1}, "--top-k");
  refuse({.topP = 0}, "--top-p");
  refuse({.topP = 1.1f}, "--top-p");
  refuse({.topP = nan}, "--top-p");
  refuse({.minP = -0.1f}, "--min-p");
  refuse({.minP = 1.1f}, "--min-p");
  refuse({.repetitionPenalty = 0}, "--repetition-penalty");
  check({});
  check({.temperature = 0, .topK = 5, .topP = 0.5f, .minP = 0.5f, .repetitionPenalty = 1.3f});
}

}  // namespace
}  // namespace tandem::runtime
