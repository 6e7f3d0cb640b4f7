// What each rank of a grid has of a model that decodes: together all of it, exchanged in the same order, caches and
// vocabulary parted.

#include "common/sharding/decoding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "common/graph/operators.h"
#include "common/graph/passes.h"
#include "tests/common/data/expect_error.h"

namespace tandem::sharding {
namespace {

using base::DType;
using graph::Role;

constexpr std::int64_t batch = 2, fresh = 3, capacity = 8;

// Grouped heads that ranks have to share, a tied table of a vocabulary that nothing divides; and the reverse.
const std::string grouped = R"({"model_type": "llama", "vocab_size": 53, "hidden_size": 18, "num_hidden_layers": 5,
  "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 4, "intermediate_size": 23,
  "max_position_embeddings": 8, "tie_word_embeddings": true})";
const std::string gpt2 = R"({"model_type": "gpt2", "vocab_size": 50, "n_embd": 30, "n_layer": 3, "n_head": 5,
  "n_positions": 9, "n_inner": 41, "tie_word_embeddings": false})";

model::Configuration modelOf(const std::string& fields) { return model::parseConfiguration(fields, "of the test"); }

class Decoding : public testing::TestWithParam<std::tuple<std::string, Grid>> {
 protected:
  template <class Work>
  void onEachRank(const Work& work) const {
    for (int rank = 0; rank < grid_.ranks(); ++rank) {
      const Coordinates own = coordinatesOf(grid_, rank);
      work(DecodingSplit(model_, grid_, own, false), own);
    }
  }

  model::Configuration model_ = modelOf(std::get<0>(GetParam()));
  Grid grid_ = std::get<1>(GetParam());
};

TEST_P(Decoding, ranksTogetherHoldEveryElement) {
  std::map<std::string, std::vector<bool>> isHeld;
  for (const auto& [name, part] : DecodingSplit(model_, {}, {}, false).parameters(DType::f32).parts) {
    isHeld[name].resize(static_cast<std::size_t>(part.whole().count()));
  }
  onEachRank([&](const DecodingSplit& split, const Coordinates&) {
    for (const auto& [name, part] : split.parameters(DType::f32).parts) {
      for (const Strip& strip : part.strips(0, part.shape().count())) {
        for (std::int64_t i = 0; i < strip.repeats * strip.count; ++i) {
          const std::int64_t at = strip.wholeBegin + i / strip.count * strip.stride + i % strip.count;
          isHeld.at(name)[static_cast<std::size_t>(at)] = true;
        }
      }
    }
  });
  for (const auto& [name, held] : isHeld) EXPECT_EQ(std::count(held.begin(), held.end(), false), 0) << name;
}

TEST_P(Decoding, programsAreWholeAndMeetInTheirExchanges) {
  std::map<int, std::string> exchanges;  // of each stage
  onEachRank([&](const DecodingSplit& split, const Coordinates& own) {
    const graph::Program program = graph::fuse(split.body(batch, fresh, capacity, DType::f32));
    graph::check(program);
    std::string text;
    for (const graph::Node& node : program.nodes()) {
      if (!graph::exchangesActivations(node.op)) continue;
      text += std::string(" ") + graph::name(node.op);
      const auto* counts = std::get_if<graph::ExchangeAttributes>(&node.attributes);
      if (counts == nullptr) continue;
      for (const std::int64_t count : counts->rows) text += "+" + std::to_string(count);
    }
    EXPECT_EQ(exchanges.try_emplace(own.pipeline, text).first->second, text) << "tensor rank " << own.tensor;
    EXPECT_EQ(split.hasHead(), program.find("final_norm") != graph::none);
    if (split.hasHead() && split.tokens().count > 0) graph::check(split.head(batch, DType::f32));
  });
}

TEST_P(Decoding, cachesArePartedByHeadsAndLayersAndTheVocabularyByTokens) {
  std::int64_t cached = 0, tokens = 0;
  onEachRank([&](const DecodingSplit& split, const Coordinates& own) {
    const graph::Program program = split.body(batch, fresh, capacity, DType::f32);
    const std::int64_t held = headShare(model_.heads, model_.kvHeads, grid_.tensor, own.tensor).kvHeads.count;
    for (const graph::TensorId id : program.ofRole(Role::state)) {
      EXPECT_EQ(program.tensor(id).shape, (base::Shape{batch, held, capacity, model_.headSize}));
      if (own.tensor == 0) ++cached;
    }
    if (!split.hasHead()) return;
    EXPECT_EQ(split.tokens().begin, tokens);
    tokens = split.tokens().end();
  });
  EXPECT_EQ(cached, 2 * model_.layers);
  EXPECT_EQ(tokens, model_.vocabularySize);
}

INSTANTIATE_TEST_SUITE_P(Models, Decoding,
                         testing::Combine(testing::Values(grouped, gpt2),
                                          testing::Values(Grid{}, Grid{.tensor = 2}, Grid{.tensor = 4},
                                                          Grid{.tensor = 5}, Grid{.pipeline = 3},
                                                          Grid{.pipeline = 2, .tensor = 3})));

TEST(DecodingGrids, thatCannotDecodeSayWhyAndWhichCan) {
  const model::Configuration model = modelOf(grouped);
  using base::ErrorKind;
  data::expectError(ErrorKind::usage, {"cp=2 shares out the positions", "on 2 ranks these fit: dp=2; pp=2; tp=2"},
                    [&] { demandDecoding({.context = 2}, model, false); });
  data::expectError(ErrorKind::usage, {"tp=10 is more than the model's 9 heads", "on 10 ranks"},
                    [&] { demandDecoding({.tensor = 10}, model, false); });
  data::expectError(ErrorKind::usage,
                    {"vp=2 interleaves micro batches", "leave vp out", "on 2 ranks these fit: dp=2; pp=2"},
                    [&] { demandDecoding({.pipeline = 2, .virtualStages = 2}, model, false); });
  demandDecoding({.tensor = 9}, model, false);
}

TEST(DecodingGrids, ofQuantisedMatricesAreCutBetweenGroups) {
  using base::ErrorKind;
  data::expectError(ErrorKind::usage, {"tp=2 cuts the heads of 4 columns at column 12", "groups of 32", "dp=2; pp=2"},
                    [&] { demandDecoding({.tensor = 2}, modelOf(grouped), true); });
  const auto smol = modelOf(R"({"model_type": "llama", "vocab_size": 49152, "hidden_size": 576,
    "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 96,
    "max_position_embeddings": 8})");
  data::expectError(ErrorKind::usage, {"tp=4 is more than the 3 groups of 32 columns of the MLP", "tp=2,pp=2"},
                    [&] { demandDecoding({.tensor = 4}, smol, true); });
  demandDecoding({.tensor = 3}, smol, true);
}

}  // namespace
}  // namespace tandem::sharding
