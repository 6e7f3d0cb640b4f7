// Log likelihoods over a KV cache against those of the whole text computed at once.

#include "common/runtime/continuation_scorer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "common/model/transformer.h"
#include "common/sharding/rank_program.h"

namespace tandem::runtime {
namespace {

class Scoring : public testing::Test {
 protected:
  Scoring() {
    const graph::Program program = model::buildLogits(model_, 1, 1, base::DType::f32);
    store_ = std::make_unique<ParameterStore>(layoutOf(program, 1, sharding::FlatLayout::Ownership::anywhere),
                                              *backend_, *stream_, base::DType::f32, ParameterStore::Gradients::none);
    for (const sharding::FlatParameter& parameter : store_->layout().parameters()) {
      float* const values = static_cast<float*>(store_->weightAt(parameter.offset));
      model::initialise(model_, parameter.name, 3, 0, std::span(values, static_cast<std::size_t>(parameter.count)));
    }
  }

  // By the whole text's logits.
  ContinuationScore expected(const ContinuationRequest& request) {
    const auto count = std::ssize(request.tokens) - 1;
    Executable whole(model::buildLogits(model_, 1, count, base::DType::f32), *backend_, *stream_, arena_);
    store_->bindTo(whole);
    const std::vector<std::int32_t> zeros(static_cast<std::size_t>(count), 0);
    std::vector<std::int32_t> positions;
    for (std::int32_t i = 0; i < count; ++i) positions.push_back(i);
    for (const auto& [name, values] :
         {std::pair{"tokens", &request.tokens}, {"document_start", &zeros}, {"positions", &std::as_const(positions)}}) {
      if (whole.has(name)) whole.setInput(name, values->data());
    }
    whole.run();
    const std::vector<float> logits = whole.readFloats("logits");
    ContinuationScore score;
    for (std::int64_t i = count - request.asked; i < count; ++i) {
      const auto row = std::span(logits).subspan(static_cast<std::size_t>(i * model_.vocabularySize),
                                                 static_cast<std::size_t>(model_.vocabularySize));
      double sum = 0;
      for (const float logit : row) sum += std::exp(static_cast<double>(logit));
      const std::int32_t token = request.tokens[static_cast<std::size_t>(i + 1)];
      score.logLikelihood += static_cast<double>(row[static_cast<std::size_t>(token)]) - std::log(sum);
      score.isGreedy = score.isGreedy && std::ranges::max_element(row) - row.begin() == token;
    }
    return score;
  }

  std::vector<ContinuationScores> scores(const std::vector<ContinuationGroup>& groups, std::int64_t batch,
                                         std::int64_t prefix,
                                         model::CacheFormat caches = model::CacheFormat::asStored) {
    return ContinuationScorer(model_, *store_, batch, 300, *backend_, *stream_, arena_, nullptr, caches)
        .run(groups, prefix);
  }

  static ContinuationRequest request(std::int32_t seed, std::int64_t shared, std::int64_t own, std::int64_t asked) {
    ContinuationRequest request{.tokens = {}, .asked = asked};
    for (std::int64_t i = 0; i < shared; ++i) request.tokens.push_back(static_cast<std::int32_t>(i * 7 % 50));
    for (std::int64_t i = 0; i < own; ++i) request.tokens.push_back(static_cast<std::int32_t>((i * 5 + seed) % 50));
    return request;
  }

  model::Configuration model_ = model::parseConfiguration(
      R"({"model_type": "llama", "vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2,
          "num_attention_heads": 2, "intermediate_size": 24, "max_position_embeddings": 300, "initializer_range": 0.5})",
      "of the test");
  std::unique_ptr<kernels::Backend> backend_ = kernels::makeCpuBackend({.threads = 1});
  std::unique_ptr<kernels::Stream> stream_ = backend_->makeStream();
  std::shared_ptr<Arena> arena_ = std::make_shared<Arena>(*backend_);
  std::unique_ptr<ParameterStore> store_;
};

TEST_F(Scoring, equalsTheWholeTextAtAnyBatchAndPrefix) {
  const std::vector<ContinuationGroup> groups = {
      {request(1, 40, 9, 3), request(2, 40, 30, 28), request(1, 40, 9, 2)},
      {request(3, 40, 1, 1), request(4, 40, 1, 1)},  // one token: the common part answers both
      {request(5, 40, 200, 150)},
      {request(6, 40, 9, 9), request(7, 40, 12, 4), request(8, 40, 3, 1), request(9, 40, 3, 2)}};
  EXPECT_EQ(ContinuationScorer::sharedPrefix(groups), 39) << "what is asked about is not shared";
  bool anyGreedy = false;
  for (const std::int64_t batch : {1, 2, 3, 5}) {
    for (const std::int64_t prefix : {0, 17, 39}) {
      const auto measured = scores(groups, batch, prefix);
      for (std::size_t i = 0; i < groups.size(); ++i) {
        ASSERT_EQ(measured[i].size(), groups[i].size());
        for (std::size_t r = 0; r < groups[i].size(); ++r) {
          const ContinuationScore whole = expected(groups[i][r]);
          EXPECT_NEAR(measured[i][r].logLikelihood, whole.logLikelihood, 1e-4 * std::abs(whole.logLikelihood));
          EXPECT_EQ(measured[i][r].isGreedy, whole.isGreedy);
        }
      }
    }
  }
  // A continuation that greedy decoding would write.
  ContinuationRequest greedy = request(1, 20, 0, 1);
  greedy.tokens.push_back(0);
  for (std::int32_t token = 0; token < 50 && !anyGreedy; ++token) {
    greedy.tokens.back() = token;
    anyGreedy = scores({{greedy}}, 1, 0)[0][0].isGreedy;
  }
  EXPECT_TRUE(anyGreedy);
}

TEST_F(Scoring, aCacheInEightBitsIsClose) {
  const ContinuationGroup text = {request(5, 40, 200, 150)};
  const double whole = scores({text}, 1, 0)[0][0].logLikelihood;
  const double coded = scores({text}, 1, 0, model::CacheFormat::int8)[0][0].logLikelihood;
  EXPECT_NE(coded, whole);
  EXPECT_NEAR(coded / whole, 1, 5e-3);
}

TEST_F(Scoring, aKeptPrefixGivesWayToAnother) {
  ContinuationScorer scorer(model_, *store_, 2, 300, *backend_, *stream_, arena_);
  const ContinuationGroup first = {request(1, 20, 4, 2)};
  ContinuationGroup second = {request(2, 20, 4, 2)};
  second[0].tokens[3] += 1;
  for (const ContinuationGroup& group : {first, second, first, first}) {
    const ContinuationScore measured = scorer.run(std::span(&group, 1), 20)[0][0];
    EXPECT_NEAR(measured.logLikelihood, expected(group[0]).logLikelihood, 1e-3);
  }
  // A slot that had no group keeps the prefix too.
  const std::vector<ContinuationGroup> both = {first, {request(4, 20, 6, 3)}};
  const auto measured = scorer.run(both, 20);
  EXPECT_NEAR(measured[1][0].logLikelihood, expected(both[1][0]).logLikelihood, 1e-3);
}

}  // namespace
}  // namespace tandem::runtime
