// Writing from prompts: how answers end, and that a sequence does not depend on its neighbours. (That what is written
// is what whole-sequence programs give is tested against golden values.)

#include "common/runtime/generator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "common/model/transformer.h"
#include "common/runtime/decoding_speed.h"
#include "common/sharding/rank_program.h"
#include "tests/common/data/expect_error.h"

namespace tandem::runtime {
namespace {

constexpr std::int64_t capacity = 40;

class Writing : public testing::Test {
 protected:
  Writing() {
    const graph::Program program = model::buildLogits(model_, 1, 1, base::DType::f32);
    store_ = std::make_unique<ParameterStore>(layoutOf(program, 1, sharding::FlatLayout::Ownership::anywhere),
                                              *backend_, *stream_, base::DType::f32, ParameterStore::Gradients::none);
    for (const sharding::FlatParameter& parameter : store_->layout().parameters()) {
      float* const values = static_cast<float*>(store_->weightAt(parameter.offset));
      model::initialise(model_, parameter.name, 3, 0, std::span(values, static_cast<std::size_t>(parameter.count)));
      if (parameter.name == "embedding.weight") {
        for (std::int64_t i = 0; i < parameter.count; ++i) values[i] *= 50;  // so that tokens differ clearly
      }
    }
  }

  std::vector<Generation> write(const std::vector<GenerationRequest>& requests, std::int64_t batch,
                                const SamplingOptions& sampling = {.temperature = 0},
                                const Generator::OnToken& onToken = {}) {
    Generator generator(model_, *store_, batch, capacity, *backend_, *stream_, arena_);
    return generator.run(requests, sampling, onToken);
  }

  model::Configuration model_ = model::parseConfiguration(
      R"({"model_type": "llama", "vocab_size": 61, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 24, "max_position_embeddings": 64, "tie_word_embeddings": false})",
      "of the test");
  std::unique_ptr<kernels::Backend> backend_ = kernels::makeCpuBackend({.threads = 1});
  std::unique_ptr<kernels::Stream> stream_ = backend_->makeStream();
  std::shared_ptr<Arena> arena_ = std::make_shared<Arena>(*backend_);
  std::unique_ptr<ParameterStore> store_;
};

TEST_F(Writing, endsAtTheNumberOfTokensAskedFor) {
  const Generation answer = write({{.prompt = {1, 2}, .maxTokens = 5}}, 1)[0];
  EXPECT_EQ(answer.tokens.size(), 5u);
  EXPECT_EQ(answer.stopReason, "max_tokens");
}

TEST_F(Writing, endsAtAStopTokenWhichIsNoPartOfTheAnswer) {
  const std::vector<std::int32_t> whole = write({{.prompt = {1, 2}, .maxTokens = 8}}, 1)[0].tokens;
  const Generation answer = write({{.prompt = {1, 2}, .maxTokens = 8, .stopTokens = {60, whole[3]}}}, 1)[0];
  EXPECT_EQ(answer.stopReason, "stop_token");
  const auto first = std::find(whole.begin(), whole.end(), whole[3]);
  EXPECT_EQ(answer.tokens, std::vector<std::int32_t>(whole.begin(), first));
}

TEST_F(Writing, endsWhenTheCacheIsFull) {
  const Generation answer = write({{.prompt = {1, 2, 3}, .maxTokens = 1000}}, 1)[0];
  EXPECT_EQ(answer.stopReason, "cache_full");
  EXPECT_EQ(static_cast<std::int64_t>(answer.tokens.size()), capacity - 3);
}

TEST_F(Writing, endsWhenTheCallerSaysSo) {
  int seen = 0;
  const Generation answer = write({{.prompt = {1, 2}, .maxTokens = 9}}, 1, {.temperature = 0},
                                  [&](std::int64_t, std::int32_t) { return ++seen < 3; })[0];
  EXPECT_EQ(answer.stopReason, "stopped");
  EXPECT_EQ(answer.tokens.size(), 3u);
}

TEST_F(Writing, aSequenceIsTheSameWhateverIsWrittenBesideIt) {
  std::vector<GenerationRequest> requests;
  for (std::int32_t i = 0; i < 5; ++i) {
    GenerationRequest request{.maxTokens = 4 + 3 * i, .sequence = static_cast<std::uint64_t>(i)};
    for (std::int32_t t = 0; t <= 4 * i; ++t) request.prompt.push_back((7 * i + t) % 61);
    requests.push_back(request);
  }
  for (const float temperature : {0.0f, 1.0f}) {
    const SamplingOptions sampling{.temperature = temperature, .seed = 9};
    const std::vector<Generation> together = write(requests, 5, sampling);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(write({requests[i]}, 1, sampling)[0].tokens, together[i].tokens) << i;
      EXPECT_EQ(write({requests[i]}, 3, sampling)[0].tokens, together[i].tokens) << i;
    }
  }
}

TEST_F(Writing, nothingIsWrittenWhereNothingIsAskedFor) {
  const Generation answer = write({{.prompt = {1}, .maxTokens = 0}}, 1)[0];
  EXPECT_TRUE(answer.tokens.empty());
  EXPECT_EQ(answer.stopReason, "max_tokens");
}

TEST_F(Writing, promptsThatAreEmptyOrTooLongAreUsageErrors) {
  data::expectError(base::ErrorKind::usage, {"empty"}, [&] { write({{.prompt = {}}}, 1); });
  const std::vector<std::int32_t> tooLong(capacity, 1);
  data::expectError(base::ErrorKind::usage, {"40 tokens"}, [&] { write({{.prompt = tooLong}}, 1); });
}

TEST_F(Writing, weightsThatAreNoNumbersAreANumericErrorNotAToken) {
  static_cast<float*>(store_->weightAt(store_->layout().parameters().back().offset))[0] = NAN;
  data::expectError(base::ErrorKind::numeric, {"logits"}, [&] { write({{.prompt = {1, 2}}}, 1); });
}

TEST_F(Writing, aStepReadsAllWeightsButTheTableThatRowsAreTakenFrom) {
  const Generator generator(model_, *store_, 2, capacity, *backend_, *stream_, arena_);
  const std::int64_t table = 61 * 16, cachedHeads = 2 * 2 * 16;  // keys and values of two layers
  std::int64_t parameters = 0;
  for (const sharding::FlatParameter& parameter : store_->layout().parameters()) parameters += parameter.count;
  EXPECT_EQ(generator.weightBytesOfStep(), 4 * (parameters - table));
  EXPECT_EQ(generator.cacheBytesOfToken(), 4 * cachedHeads);
  EXPECT_GE(generator.cacheBytes(), 2 * capacity * generator.cacheBytesOfToken());
}

TEST_F(Writing, aCacheInEightBitsTakesAScaleForEachHeadAndPositionAndAByteANumber) {
  const auto bytesOf = [&](model::CacheFormat caches) {
    const Generator generator(model_, *store_, 2, capacity, *backend_, *stream_, arena_, nullptr, caches);
    return std::pair{generator.cacheBytesOfToken(), generator.cacheBytes()};
  };
  const auto [whole, wholeHeld] = bytesOf(model::CacheFormat::asStored);
  const auto [coded, codedHeld] = bytesOf(model::CacheFormat::int8);
  EXPECT_EQ(coded, 2 * 2 * 2 * (4 + 8));  // keys and values of two layers of two heads of eight numbers
  EXPECT_EQ(codedHeld * whole, wholeHeld * coded);
}

TEST_F(Writing, theBytesThatDecodingReadsFollowFromItsRate) {
  Generator generator(model_, *store_, 2, capacity, *backend_, *stream_, arena_);
  const auto alone = comm::makeSingleProcess();
  const SpeedResult speed =
      measureSpeed(generator, 61, {.promptTokens = 6, .generatedTokens = 5, .batch = 2}, 3, *alone, 1);
  EXPECT_GT(speed.firstTokenSeconds.mean, 0);
  EXPECT_GT(speed.promptRate.mean, 0);
  ASSERT_TRUE(speed.decodeRate && speed.decodeBytesPerSecond);
  // Four steps find 6, 7, 8 and 9 tokens in the cache and add one.
  const auto bytesOfStep =
      static_cast<double>(generator.weightBytesOfStep()) + 2 * 8.5 * static_cast<double>(generator.cacheBytesOfToken());
  EXPECT_NEAR(*speed.decodeBytesPerSecond / (speed.decodeRate->mean / 2 * bytesOfStep), 1, 1e-12);
}

TEST_F(Writing, anAnswerOfOneTokenHasNoRateOfDecoding) {
  Generator generator(model_, *store_, 1, capacity, *backend_, *stream_, arena_);
  const auto alone = comm::makeSingleProcess();
  EXPECT_FALSE(measureSpeed(generator, 61, {.promptTokens = 6, .generatedTokens = 1}, 1, *alone, 1).decodeRate);
}

TEST_F(Writing, speedIsNotMeasuredOfPromptsThatDoNotFit) {
  Generator generator(model_, *store_, 1, capacity, *backend_, *stream_, arena_);
  const auto alone = comm::makeSingleProcess();
  data::expectError(base::ErrorKind::usage, {"40 tokens"}, [&] {
    measureSpeed(generator, 61, {.promptTokens = capacity, .generatedTokens = 1}, 1, *alone, 1);
  });
}

TEST(MeanAndDeviation, areOfASample) {
  const std::vector<double> values = {2, 4, 4, 4, 5, 5, 7, 9};
  EXPECT_DOUBLE_EQ(meanAndDeviation(values).mean, 5);
  EXPECT_DOUBLE_EQ(meanAndDeviation(values).deviation, std::sqrt(32.0 / 7));
  EXPECT_EQ(meanAndDeviation(std::span(values).first(1)).deviation, 0);
}

}  // namespace
}  // namespace tandem::runtime
