// What the planner predicts, against what a program really takes and against calculation by hand; what it takes, and
// what it says when nothing fits.

#include "common/sharding/planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/base/error.h"
#include "common/train/training_step.h"

namespace tandem::sharding {
namespace {

using base::DType;
using graph::Recompute;

constexpr std::int64_t gibi = std::int64_t{1} << 30;

model::Configuration llama(std::int64_t layers, const std::string& more = "") {
  return model::parseConfiguration(R"({"model_type": "llama", "vocab_size": 500, "hidden_size": 64,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 160, "max_position_embeddings": 512,
    "num_hidden_layers": )" + std::to_string(layers) +
                                       more + "}",
                                   "of the test");
}

model::Configuration gpt2(std::int64_t layers) {
  return model::parseConfiguration(
      R"({"model_type": "gpt2", "vocab_size": 300, "n_embd": 48, "n_head": 4, "n_positions": 256, "n_layer": )" +
          std::to_string(layers) + "}",
      "of the test");
}

// Whose memory is never what takes the time, so that times are operations divided by the rate.
Cluster machine(int nodes, int devicesPerNode) {
  Cluster cluster{.name = "machine", .nodes = nodes, .devicesPerNode = devicesPerNode};
  cluster.memoryBytes = gibi;
  cluster.matrixRateF32 = cluster.matrixRateBf16 = 1e9;
  cluster.memoryRate = 1e30;
  if (devicesPerNode > 1) cluster.inside = {.bytesPerSecond = 1e9, .latencySeconds = 0};
  if (nodes > 1) cluster.between = {.bytesPerSecond = 1e8, .latencySeconds = 0};
  cluster.overlap = 0;
  return cluster;
}

PlanRequest requestOf(const model::Configuration& configuration, const Cluster& cluster, std::int64_t rows = 8) {
  return {.configuration = configuration, .sequenceLength = 64, .batchTokens = rows * 64, .cluster = cluster};
}

graph::Program programOf(const PlanRequest& request, Recompute recompute, std::int64_t rows) {
  return train::trainingProgram(request.configuration, rows, request.sequenceLength, request.storage, recompute);
}

std::int64_t bytesOfRole(const graph::Program& program, graph::Role role) {
  std::int64_t bytes = 0;
  for (const graph::TensorId id : program.ofRole(role)) {
    bytes += program.tensor(id).shape.count() * base::byteSize(program.tensor(id).type);
  }
  return bytes;
}

TEST(PlannersMemory, isThatOfTheRealProgramWithinFivePercent) {
  for (const model::Configuration& configuration :
       {llama(1), llama(2), llama(5), llama(9, R"(, "tie_word_embeddings": true)"), gpt2(3), gpt2(8)}) {
    for (const DType storage : {DType::f32, DType::bf16}) {
      for (const Recompute recompute : {Recompute::nothing, Recompute::selective, Recompute::full}) {
        for (const std::int64_t rows : {1, 4}) {
          PlanRequest request = requestOf(configuration, machine(1, 1));
          request.storage = storage;
          const graph::Program program = programOf(request, recompute, rows);
          const std::int64_t real = graph::planMemory(program).arenaBytes + bytesOfRole(program, graph::Role::input) +
                                    bytesOfRole(program, graph::Role::output);
          const Plan plan = predict(request, Grid{}, recompute, rows);
          const double ratio = static_cast<double>(plan.memory.activations) / static_cast<double>(real);
          EXPECT_NEAR(ratio, 1, 0.05) << configuration.type << " of " << configuration.layers << " layers, recompute "
                                      << recomputeText(recompute) << ", " << rows << " rows";
          EXPECT_EQ(plan.memory.weights, bytesOfRole(program, graph::Role::parameter));
          EXPECT_EQ(plan.memory.gradients, bytesOfRole(program, graph::Role::gradient));
        }
      }
    }
  }
}

TEST(PlannersMemory, ofTensorRanksIsThatOfTheirRealProgramWithinFivePercent) {
  for (const model::Configuration& configuration : {llama(5), gpt2(4)}) {
    for (const Recompute recompute : {Recompute::nothing, Recompute::selective, Recompute::full}) {
      for (const int tensor : {2, 4}) {
        const PlanRequest request = requestOf(configuration, machine(1, 4));
        const Grid grid{.tensor = tensor};
        const graph::Program program = train::trainingProgram(
            train::lossPart(configuration, 2, request.sequenceLength, request.storage, grid, {}).program, recompute);
        const std::int64_t real = graph::planMemory(program).arenaBytes + bytesOfRole(program, graph::Role::input) +
                                  bytesOfRole(program, graph::Role::output);
        const Plan plan = predict(request, grid, recompute, 2);
        EXPECT_NEAR(static_cast<double>(plan.memory.activations) / static_cast<double>(real), 1, 0.05)
            << configuration.type << ", " << tensor << " ranks, recompute " << recomputeText(recompute);
        EXPECT_NEAR(static_cast<double>(plan.memory.weights),
                    static_cast<double>(bytesOfRole(program, graph::Role::parameter)),
                    0.05 * static_cast<double>(plan.memory.weights));
      }
    }
  }
}

TEST(PlannersMemory, isSharedOutByTheStagesOfZero) {
  const PlanRequest request = requestOf(llama(6), machine(1, 4));
  const auto memory = [&](int zero) {
    return predict(request, {.data = 4, .zero = zero}, Recompute::nothing, 1).memory;
  };
  const PredictedMemory whole = memory(0);
  EXPECT_EQ(whole.gradients, whole.weights);
  EXPECT_EQ(whole.optimizerStates, 2 * whole.weights);
  EXPECT_EQ(memory(1).optimizerStates, whole.optimizerStates / 4);
  EXPECT_EQ(memory(1).gradients, whole.gradients);
  EXPECT_LT(memory(2).gradients, whole.gradients / 2);
  EXPECT_EQ(memory(2).weights, whole.weights);
  EXPECT_LT(memory(3).weights, whole.weights);
  for (int zero = 0; zero <= 3; ++zero) EXPECT_EQ(memory(zero).activations, whole.activations);
}

TEST(PlannersMemory, hasMastersBesideWeightsOfSixteenBits) {
  PlanRequest request = requestOf(llama(6), machine(1, 1));
  request.storage = DType::bf16;
  const PredictedMemory memory = predict(request, Grid{}, Recompute::nothing, 1).memory;
  EXPECT_EQ(memory.gradients, 2 * memory.weights);
  EXPECT_EQ(memory.optimizerStates, 6 * memory.weights);
  request.moments = DType::bf16;
  EXPECT_EQ(predict(request, Grid{}, Recompute::nothing, 1).memory.optimizerStates, 4 * memory.weights);
}

TEST(PlannersMemory, ofAPipelineHoldsTheMicroBatchesThatHaveBegun) {
  const PlanRequest request = requestOf(llama(8), machine(1, 4));
  const auto activations = [&](int stages) {
    return predict(request, {.pipeline = stages}, Recompute::nothing, 1).memory.activations;
  };
  // Half of the layers for two micro batches, and what is alive beside them twice.
  EXPECT_GE(activations(2), activations(1));
  EXPECT_LT(activations(2), 2 * activations(1));
  // One micro batch in all cannot have begun twice.
  const PlanRequest one = requestOf(llama(8), machine(1, 4), 1);
  EXPECT_LT(predict(one, {.pipeline = 2}, Recompute::nothing, 1).memory.activations, activations(2));
}

TEST(PlannersTime, isOperationsByTheRateOnOneDevice) {
  for (const Recompute recompute : {Recompute::nothing, Recompute::full}) {
    const PlanRequest request = requestOf(gpt2(5), machine(1, 1));
    const Plan plan = predict(request, Grid{}, recompute, 2);
    EXPECT_EQ(plan.microBatches, 4);
    const double seconds = 4 * graph::totalCost(programOf(request, recompute, 2)).flops / 1e9;
    EXPECT_NEAR(plan.time.compute, seconds, 1e-9 * seconds);
    EXPECT_NEAR(plan.time.total(), seconds, 1e-9 * seconds);
  }
}

TEST(PlannersTime, isTrafficByTheMemorysRateWhereThatIsSlower) {
  PlanRequest request = requestOf(gpt2(5), machine(1, 1));
  request.cluster.memoryRate = 1;
  request.cluster.matrixRateF32 = 1e30;
  const Plan plan = predict(request, Grid{}, Recompute::nothing, 4);
  const double seconds = 2 * graph::totalCost(programOf(request, Recompute::nothing, 4)).bytes;
  EXPECT_NEAR(plan.time.compute, seconds, 0.02 * seconds);  // the first layer has one sum less
}

TEST(PlannersTime, ofDataRanksIsThatOfSumsAndOfNewWeights) {
  PlanRequest request = requestOf(llama(6), machine(4, 1));
  const double bytes =
      static_cast<double>(bytesOfRole(programOf(request, Recompute::nothing, 1), graph::Role::parameter));
  const auto data = [&](int zero) {
    return predict(request, {.data = 4, .zero = zero}, Recompute::nothing, 1).time.data;
  };
  const double once = bytes * 3 / 4 / 1e8;  // what all but the rank's own quarter takes
  EXPECT_NEAR(data(1), 2 * once, 1e-9 * once);
  EXPECT_NEAR(data(0), 2 * once, 1e-9 * once);
  EXPECT_NEAR(data(2), 3 * once, 1e-9 * once);  // two micro batches' sums
  EXPECT_GT(data(3), 5.99 * once);              // and the weights for each pass of each
}

TEST(PlannersTime, ofDataRanksIsHiddenBesideTheBackwardPassButForTheLastBucket) {
  PlanRequest request = requestOf(model::parseConfiguration(R"({"model_type": "llama", "vocab_size": 500,
    "hidden_size": 512, "num_attention_heads": 4, "intermediate_size": 2048, "max_position_embeddings": 512,
    "num_hidden_layers": 24})",
                                                            "of the test"),
                                  machine(4, 1));
  const Plan open = predict(request, {.data = 4}, Recompute::nothing, 1);
  request.cluster.overlap = 1;
  const Plan hidden = predict(request, {.data = 4}, Recompute::nothing, 1);
  EXPECT_EQ(open.time.hidden, 0);
  EXPECT_NEAR(open.time.data, hidden.time.data + hidden.time.hidden, 1e-9);
  const double sums = open.time.data / 2;  // in float32 they take as long as the weights
  const double buckets = static_cast<double>(open.memory.weights) / 4 / (4 << 20);
  EXPECT_NEAR(hidden.time.hidden, sums * (1 - 1 / buckets), 1e-9);
}

TEST(PlannersTime, ofTensorRanksIsThatOfTheRowsThatAreGathered) {
  const PlanRequest request = requestOf(llama(6), machine(1, 2));
  const Plan plan = predict(request, {.tensor = 2}, Recompute::nothing, 2);
  const double rows = 2 * 64 * 64 * 4;  // bytes of two rows of 64 tokens
  EXPECT_NEAR(plan.time.tensor, 4 * (6 * 8 + 4) * rows / 2 / 1e9, 1e-12);
  const double alone = predict(request, Grid{}, Recompute::nothing, 2).time.compute;
  EXPECT_NEAR(plan.time.compute, alone / 2, 1e-9 * alone);
}

TEST(PlannersTime, ofAPipelineFillsAndDrains) {
  const PlanRequest request = requestOf(llama(6), machine(1, 2));
  const Plan plan = predict(request, {.pipeline = 2}, Recompute::nothing, 2);
  EXPECT_NEAR(plan.time.bubble, plan.time.compute / 4, 1e-12);
  const double alone = predict(request, Grid{}, Recompute::nothing, 2).time.compute;
  EXPECT_GE(plan.time.compute, alone / 2);
}

TEST(Stages, areBalancedByWhatTheyCost) {
  EXPECT_EQ(balanceStages(8, 1, 3), (std::vector<std::int64_t>{8}));
  EXPECT_EQ(balanceStages(8, 4, 0), (std::vector<std::int64_t>{2, 2, 2, 2}));
  EXPECT_EQ(balanceStages(8, 2, 2), (std::vector<std::int64_t>{5, 3}));
  EXPECT_EQ(balanceStages(3, 3, 100), (std::vector<std::int64_t>{1, 1, 1}));
  for (std::int64_t layers = 1; layers <= 20; ++layers) {
    for (int stages = 1; stages <= layers; ++stages) {
      const std::vector<std::int64_t> dealt = balanceStages(layers, stages, 1.3);
      EXPECT_EQ(dealt.size(), static_cast<std::size_t>(stages));
      EXPECT_EQ(std::accumulate(dealt.begin(), dealt.end(), std::int64_t{0}), layers);
      EXPECT_GE(*std::ranges::min_element(dealt), 1);
    }
  }
}

TEST(Planner, splitsRowsAloneWhereOneDeviceHasRoomForTheModel) {
  for (const int devices : {1, 2, 4, 8}) {
    const Plan plan = planTraining(requestOf(llama(6), machine(devices, 1), 64)).taken();
    EXPECT_EQ(plan.grid.data, devices) << plan.grid.text();
  }
}

TEST(Planner, splitsTheModelWhereItDoesNotFitOtherwise) {
  PlanRequest request = requestOf(llama(6), machine(1, 4));
  PlanRequest asData = request;
  asData.grid = Grid{.data = 4};
  asData.recompute = Recompute::full;
  asData.microBatch = 1;
  request.cluster.memoryBytes = planTraining(asData).taken().memory.total() - 1;
  const Plan plan = planTraining(request).taken();
  EXPECT_NE(plan.grid, (Grid{.data = 4})) << plan.grid.text();
  EXPECT_LE(plan.memory.total(), request.cluster.memoryBytes);
}

TEST(Planner, isNeverSlowerNorSplitsMoreWithMoreMemory) {
  for (const model::Configuration& configuration : {llama(6), gpt2(4)}) {
    for (const auto& [nodes, devices] : {std::pair{4, 1}, {2, 2}}) {
      PlanRequest request = requestOf(configuration, machine(nodes, devices));
      double before = INFINITY;
      int fitted = 0, splitBefore = 1 << 20;
      for (std::int64_t memory = 1 << 18; memory <= gibi; memory *= 2) {
        request.cluster.memoryBytes = memory;
        try {
          const Planning planning = planTraining(request);
          const Plan& plan = planning.taken();
          EXPECT_LE(plan.memory.total(), memory);
          EXPECT_LE(plan.time.total(), 1.01 * before);
          const int split = plan.grid.tensor * plan.grid.pipeline * plan.grid.context;
          EXPECT_LE(split, splitBefore) << memory << ": " << plan.grid.text();
          before = plan.time.total();
          splitBefore = split;
          ++fitted;
        } catch (const base::Error& error) {
          EXPECT_EQ(fitted, 0) << "what fitted into less does not fit any more: " << error.message();
        }
      }
      EXPECT_GT(fitted, 0);
    }
  }
}

TEST(Planner, keepsToWhatIsGiven) {
  PlanRequest request = requestOf(llama(6), machine(2, 2));
  request.grid = Grid{.data = 2, .tensor = 2, .zero = 2};
  request.recompute = Recompute::selective;
  request.microBatch = 2;
  const Planning planning = planTraining(request);
  ASSERT_EQ(planning.best.size(), 1u);
  EXPECT_EQ(planning.taken().grid, *request.grid);
  EXPECT_EQ(planning.taken().recompute, Recompute::selective);
  EXPECT_EQ(planning.taken().microBatch, 2);
}

TEST(Planner, takesNoGridThatIsRefused) {
  PlanRequest request = requestOf(llama(6), machine(1, 4));
  request.whyRefused = [](const Grid& grid) { return grid.data > 1 ? "no data axis today" : ""; };
  const Planning planning = planTraining(request);
  for (const Plan& plan : planning.best) EXPECT_EQ(plan.grid.data, 1) << plan.grid.text();
  EXPECT_NE(planning.losers.at("cannot be run").closest.find("no data axis today"), std::string::npos);
}

TEST(Planner, showsTheBestOfDifferentGridsAndWhyTheOthersLost) {
  const PlanRequest request = requestOf(llama(6), machine(1, 4));
  const Planning planning = planTraining(request);
  ASSERT_EQ(planning.best.size(), 5u);
  std::int64_t lost = 0;
  for (const auto& [reason, losers] : planning.losers) {
    if (reason != "do not divide the rows of a step") lost += losers.count;
    EXPECT_FALSE(losers.closest.empty()) << reason;
  }
  EXPECT_EQ(planning.weighed, lost + 5);
  const std::string text = describe(request, planning);
  for (const Plan& plan : planning.best) EXPECT_NE(text.find("\n" + plan.grid.text()), std::string::npos) << text;
  EXPECT_NE(text.find("taken: " + planning.taken().grid.text()), std::string::npos) << text;
  EXPECT_NE(text.find("optimizer states"), std::string::npos) << text;
  EXPECT_NE(text.find("exchange more between"), std::string::npos) << text;
}

std::string refusalOf(const PlanRequest& request) {
  try {
    planTraining(request);
  } catch (const base::Error& error) {
    EXPECT_EQ(error.kind(), base::ErrorKind::usage);
    return error.message();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

TEST(Planner, saysWhatWouldFitWhenNothingDoes) {
  PlanRequest request = requestOf(llama(12), machine(2, 2));
  request.cluster.memoryBytes = 400'000;
  const std::string message = refusalOf(request);
  EXPECT_NE(message.find("no plan for this model on the 4 devices of 'machine' fits into memory"), std::string::npos)
      << message;
  EXPECT_NE(message.find("a device has 390.6 KiB; it would fit with "), std::string::npos) << message;
  const std::size_t place = message.find(", or on ");
  ASSERT_NE(place, std::string::npos) << message;
  // And so it does.
  request.cluster.nodes = std::stoi(message.substr(place + 8)) / 2;
  EXPECT_LE(planTraining(request).taken().memory.total(), 400'000);
  request.cluster.nodes /= 2;
  refusalOf(request);
}

TEST(Planner, refusesABatchThatDoesNotDivide) {
  PlanRequest request = requestOf(llama(6), machine(1, 4));
  request.batchTokens = 100;
  EXPECT_NE(refusalOf(request).find("--batch-tokens 100 is no multiple of --sequence-length 64"), std::string::npos);
  request.batchTokens = 3 * 64;
  request.microBatch = 2;
  EXPECT_NE(refusalOf(request).find("do not divide the rows of a step"), std::string::npos);
  request.grid = Grid{.tensor = 8};
  EXPECT_NE(refusalOf(request).find("tp=8 is more than the model's 4 heads"), std::string::npos);
}

TEST(Planner, plansTheLargeModelsOfTheTree) {
  const auto plan = [](const std::string& model, const std::string& cluster, std::int64_t tokens, std::int64_t rows) {
    const PlanRequest request{.configuration = model::readConfiguration(TANDEM_DATA_FOLDER "/models/" + model),
                              .sequenceLength = tokens,
                              .batchTokens = rows * tokens,
                              .storage = DType::bf16,
                              .cluster = readCluster(TANDEM_DATA_FOLDER "/clusters/" + cluster)};
    return planTraining(request).taken();
  };
  // Every Spark has room for 16 bytes a parameter: rows are all that is split.
  EXPECT_EQ(plan("llama-1.4b.json", "spark-pair.toml", 2048, 64).grid.data, 2);
  // 70 billion parameters need their matrices or layers split, tensor ranks inside a node.
  const Plan large = plan("llama-70b.json", "h100-64x8.toml", 4096, 1024);
  EXPECT_EQ(large.grid.ranks(), 512);
  EXPECT_LE(large.grid.tensor, 8);
  EXPECT_LE(large.memory.total(), 75 * gibi);
}

}  // namespace
}  // namespace tandem::sharding
