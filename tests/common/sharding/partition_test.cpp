// The programs of tensor ranks and pipeline stages: together they hold the model, and they exchange in the same order.

#include "common/sharding/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "common/base/error.h"
#include "common/graph/operators.h"
#include "common/graph/passes.h"
#include "common/model/transformer.h"
#include "common/sharding/data_parallel.h"
#include "common/sharding/flat_layout.h"
#include "common/sharding/pipeline.h"

namespace tandem::sharding {
namespace {

using graph::Operator;
using graph::Program;
using graph::Role;

const std::string gpt2 = R"({"model_type": "gpt2", "vocab_size": 50, "n_embd": 30, "n_layer": 3, "n_head": 5,
  "n_positions": 9, "n_inner": 41})";
const std::string qwen3 = R"({"model_type": "qwen3", "vocab_size": 53, "hidden_size": 18, "num_hidden_layers": 5,
  "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 4, "intermediate_size": 23,
  "max_position_embeddings": 8, "tie_word_embeddings": false})";

Program forwardOf(const std::string& fields) {
  return model::buildLoss(model::parseConfiguration(fields, "of the test"), 2, 7, base::DType::f32);
}

class Partition : public testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  Program forward() const { return forwardOf(std::get<0>(GetParam())); }
  int ranks() const { return std::get<1>(GetParam()); }
};

TEST_P(Partition, ranksTogetherSpeakForEveryElementOnce) {
  const Program whole = forward();
  std::map<std::string, std::vector<int>> spokenFor;
  for (const graph::TensorId id : whole.ofRole(Role::parameter)) {
    spokenFor[whole.tensor(id).name].resize(static_cast<std::size_t>(whole.tensor(id).shape.count()));
  }
  for (int rank = 0; rank < ranks(); ++rank) {
    const PartitionedProgram part = splitOverTensorRanks(whole, rank, ranks());
    std::vector<FlatLayout::Named> parameters;
    for (const graph::TensorId id : part.program.ofRole(Role::parameter)) {
      const graph::Tensor& tensor = part.program.tensor(id);
      parameters.push_back({tensor.name, tensor.shape, part.parts.at(tensor.name)});
    }
    const FlatLayout layout(parameters, 2, FlatLayout::Ownership::anywhere, 100);
    for (int replica = 0; replica < 2; ++replica) {
      for (const OwnedRun& run : layout.countedRuns(replica)) {
        const FlatParameter& parameter = layout.parameters()[static_cast<std::size_t>(run.parameter)];
        for (const Strip& strip : parameter.part.strips(run.begin, run.count)) {
          for (std::int64_t i = 0; i < strip.repeats * strip.count; ++i) {
            const std::int64_t at = strip.wholeBegin + i / strip.count * strip.stride + i % strip.count;
            ++spokenFor[parameter.name][static_cast<std::size_t>(at)];
          }
        }
      }
    }
  }
  for (const auto& [name, counts] : spokenFor) {
    for (const int count : counts) ASSERT_EQ(count, 1) << name;
  }
}

// The exchanges among ranks have to meet: of activations, and of buckets, which hold the same parameters everywhere.
TEST_P(Partition, allRanksExchangeTheSameInTheSameOrder) {
  std::vector<std::string> expected;
  for (int rank = 0; rank < ranks(); ++rank) {
    const PartitionedProgram part = splitOverTensorRanks(forward(), rank, ranks());
    const Program training = graph::fuse(graph::differentiate(graph::fuse(part.program)));
    std::vector<FlatLayout::Named> parameters;
    for (const graph::TensorId id : training.ofRole(Role::parameter)) {
      const graph::Tensor& tensor = training.tensor(id);
      parameters.push_back({tensor.name, tensor.shape, part.parts.at(tensor.name)});
    }
    const FlatLayout layout(parameters, 2, FlatLayout::Ownership::anywhere, 300);
    EXPECT_GT(layout.buckets(), 3);
    std::vector<std::string> exchanges;
    const graph::Program placed = placeReduceScatters(training, layout);
    for (const graph::Node& node : placed.nodes()) {
      if (node.op == Operator::reduceScatter) {
        const auto bucket = std::get<graph::CollectiveAttributes>(node.attributes).bucket;
        std::string names;
        for (const FlatParameter& parameter : layout.parameters()) {
          if (parameter.bucket == bucket) names += " " + parameter.name;
        }
        exchanges.push_back("bucket" + names);
      } else if (graph::exchangesActivations(node.op)) {
        std::string rows;
        for (const auto count : std::get<graph::ExchangeAttributes>(node.attributes).rows) {
          rows += " " + std::to_string(count);
        }
        exchanges.push_back(graph::name(node.op) + rows);
      }
    }
    if (rank == 0) expected = exchanges;
    EXPECT_EQ(exchanges, expected) << "rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Partition,
                         testing::Combine(testing::Values(gpt2, qwen3), testing::Values(1, 2, 3, 4, 5)));

TEST(Partition, ofLogitsIsRefusedByName) {
  const Program logits = model::buildLogits(model::parseConfiguration(qwen3, "of the test"), 1, 4, base::DType::f32);
  try {
    splitOverTensorRanks(logits, 0, 2);
    FAIL() << "it was split";
  } catch (const base::Error& error) {
    EXPECT_NE(error.message().find("the operator linear cannot be split"), std::string::npos) << error.message();
  }
}

TEST(Pipeline, stagesHaveAllLayersInOrderAndOneAtLeast) {
  const Program forward = forwardOf(qwen3);
  for (int stages = 1; stages <= 5; ++stages) {
    std::int64_t end = 0;
    for (const Range& layers : stageLayers(forward, stages)) {
      EXPECT_EQ(layers.begin, end);
      EXPECT_GE(layers.count, 1);
      end = layers.end();
    }
    EXPECT_EQ(end, 5);
  }
}

TEST(Pipeline, theLastStageHasFewerLayersWhereTheVocabularyIsLarge) {
  const std::string fields = R"({"model_type": "llama", "vocab_size": 2000, "hidden_size": 16, "num_hidden_layers": 8,
    "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 8})";
  const std::vector<Range> layers = stageLayers(forwardOf(fields), 2);
  EXPECT_EQ(layers[1].count, 1);
}

TEST(Pipeline, stagesNameEveryParameterAndShareATiedEmbedding) {
  for (const std::string& fields : {gpt2, qwen3}) {
    const Program forward = forwardOf(fields);
    std::map<std::string, int> named;
    for (int stage = 0; stage < 3; ++stage) {
      const Program program = stageProgram(forward, stage, stageLayers(forward, 3), 3);
      graph::check(program);
      graph::check(graph::differentiate(program));
      for (const graph::TensorId id : program.ofRole(Role::parameter)) ++named[program.tensor(id).name];
    }
    const std::vector<std::string> shared = sharedByStages(forward, stageLayers(forward, 3));
    EXPECT_EQ(shared, fields == gpt2 ? std::vector<std::string>{"embedding.weight"} : std::vector<std::string>());
    EXPECT_EQ(named.size(), forward.ofRole(Role::parameter).size());
    for (const auto& [name, stages] : named) {
      EXPECT_EQ(stages, std::ranges::find(shared, name) != shared.end() ? 2 : 1) << name;
    }
  }
}

}  // namespace
}  // namespace tandem::sharding
