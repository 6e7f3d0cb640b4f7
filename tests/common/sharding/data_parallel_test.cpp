// A bucket is exchanged once, and not before all of its gradients are written.

#include "common/sharding/data_parallel.h"

#include <gtest/gtest.h>

#include <set>

#include "common/model/configuration.h"
#include "common/model/transformer.h"
#include "common/runtime/parameter_store.h"
#include "common/train/training_step.h"

namespace tandem::sharding {
namespace {

graph::Program trainingProgram(const std::string& fields, graph::Recompute recompute) {
  const model::Configuration configuration = model::parseConfiguration(fields, "of the test");
  return train::trainingProgram(configuration, 2, 8, base::DType::f32, recompute);
}

const std::string tied = R"({"model_type": "gpt2", "vocab_size": 50, "n_embd": 16, "n_layer": 3, "n_head": 2,
  "n_positions": 8})";
const std::string untied = R"({"model_type": "llama", "vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 3,
  "num_attention_heads": 2, "intermediate_size": 24, "max_position_embeddings": 8})";

FlatLayout layoutOf(const graph::Program& program, std::int64_t bucketElements) {
  std::vector<FlatLayout::Named> parameters;
  for (const graph::TensorId id : program.ofRole(graph::Role::parameter)) {
    parameters.push_back({program.tensor(id).name, program.tensor(id).shape});
  }
  return {parameters, 2, FlatLayout::Ownership::anywhere, bucketElements};
}

class PlaceReduceScatters : public testing::TestWithParam<std::tuple<std::string, std::int64_t, graph::Recompute>> {};

TEST_P(PlaceReduceScatters, exchangesEachBucketOnceRightAfterItsLastGradient) {
  const auto& [fields, bucketElements, recompute] = GetParam();
  const graph::Program program = trainingProgram(fields, recompute);
  const FlatLayout layout = layoutOf(program, bucketElements);
  const graph::Program placed = placeReduceScatters(program, layout);

  std::map<std::string, int> bucketOf;
  for (const FlatParameter& parameter : layout.parameters()) {
    bucketOf[graph::gradientName(parameter.name)] = parameter.bucket;
  }
  std::set<int> exchanged;
  int writtenBefore = -1;  // the bucket that the node before wrote to
  for (const graph::Node& node : placed.nodes()) {
    if (node.op == graph::Operator::reduceScatter) {
      const int bucket = std::get<graph::CollectiveAttributes>(node.attributes).bucket;
      EXPECT_TRUE(exchanged.insert(bucket).second) << "bucket " << bucket << " twice";
      EXPECT_TRUE(writtenBefore == bucket || writtenBefore == -2) << "bucket " << bucket << " is exchanged too late";
      continue;
    }
    std::set<int> written;
    for (const graph::TensorId output : node.outputs) {
      if (output == graph::none) continue;
      const auto found = bucketOf.find(placed.tensor(output).name);
      if (found == bucketOf.end()) continue;
      EXPECT_FALSE(exchanged.contains(found->second)) << found->first << " is written after its exchange";
      written.insert(found->second);
    }
    writtenBefore = written.empty() ? -1 : written.size() == 1 ? *written.begin() : -2;
  }
  EXPECT_EQ(static_cast<int>(exchanged.size()), layout.buckets());
  EXPECT_EQ(placed.nodes().size(), program.nodes().size() + exchanged.size());
}

INSTANTIATE_TEST_SUITE_P(Programs, PlaceReduceScatters,
                         testing::Combine(testing::Values(tied, untied), testing::Values(1, 500, 1 << 20),
                                          testing::Values(graph::Recompute::nothing, graph::Recompute::full)));

TEST_P(PlaceReduceScatters, andWeightsAreWaitedForOncePerBucketBeforeTheyAreRead) {
  const auto& [fields, bucketElements, recompute] = GetParam();
  const graph::Program program = trainingProgram(fields, recompute);
  const FlatLayout layout = layoutOf(program, bucketElements);
  const graph::Program placed = placeWeightWaits(program, layout);
  std::set<int> waited, due;  // due: the node that comes next reads them
  for (const graph::Node& node : placed.nodes()) {
    if (node.op == graph::Operator::waitForWeights) {
      const int bucket = std::get<graph::CollectiveAttributes>(node.attributes).bucket;
      EXPECT_TRUE(waited.insert(bucket).second) << "bucket " << bucket << " twice";
      due.insert(bucket);
      continue;
    }
    for (const graph::TensorId input : node.inputs) {
      if (input == graph::none) continue;
      const std::int64_t parameter = layout.indexOf(placed.tensor(input).name);
      if (parameter < 0) continue;
      const int bucket = layout.parameters()[static_cast<std::size_t>(parameter)].bucket;
      EXPECT_TRUE(waited.contains(bucket)) << placed.tensor(input).name << " is read before it is there";
      due.erase(bucket);
    }
    EXPECT_TRUE(due.empty()) << "weights are waited for before they are needed";
  }
  EXPECT_EQ(static_cast<int>(waited.size()), layout.buckets());
  EXPECT_EQ(placed.nodes().size(), program.nodes().size() + waited.size());
}

TEST(PlaceReduceScatters, theFirstExchangeStartsBeforeTheBackwardPassEnds) {
  const graph::Program program = trainingProgram(untied, graph::Recompute::nothing);
  const graph::Program placed = placeReduceScatters(program, layoutOf(program, 500));
  const auto& nodes = placed.nodes();
  const auto first = std::find_if(nodes.begin(), nodes.end(),
                                  [](const graph::Node& node) { return node.op == graph::Operator::reduceScatter; });
  EXPECT_LT(first - nodes.begin(), static_cast<std::ptrdiff_t>(nodes.size() * 3 / 4));
}

// The table of docs/sharding.md, for 4 ranks that hold 1,000 parameters: three quarters of them are the others'.
TEST(ParameterExchange, countsWhatEachStageOfZeroSendsInAStep) {
  const auto bytes = [](int zero, base::DType storage, Grid grid = {.data = 2, .context = 2}) {
    grid.zero = zero;
    return parameterExchangeBytes(grid, 1000, storage, 5);
  };
  EXPECT_EQ(bytes(0, base::DType::bf16), 2 * 3000);
  EXPECT_EQ(bytes(1, base::DType::f32), 3000 + 3000);
  EXPECT_EQ(bytes(1, base::DType::bf16), 3000 + 1500);
  EXPECT_EQ(bytes(2, base::DType::bf16), 5 * 3000 + 1500);
  EXPECT_EQ(bytes(3, base::DType::bf16), 5 * (3000 + 2 * 1500));
  for (const int zero : {0, 1, 2, 3}) EXPECT_EQ(bytes(zero, base::DType::f32, {.pipeline = 2, .tensor = 4}), 0);
}

}  // namespace
}  // namespace tandem::sharding
