// What the planner predicts, against what a program really takes and against calculation by hand; what it takes, and
// what it says when nothing fits.

#include "common/sharding/planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/base/error.h"
#include "common/graph/passes.h"
#include "common/sharding/pipeline.h"
#include "common/sharding/rank_program.h"
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

// What a rank of a run takes: its flat buffers, and the memory plans of the micro batches that it has begun.
std::int64_t plannedBytes(const PlanRequest& request, const Grid& grid, Recompute recompute, std::int64_t rows,
                          const Coordinates& own) {
  const PartitionedProgram part =
      lossPart(request.configuration, rows, request.sequenceLength, request.storage, grid, own);
  const FlatLayout layout = layoutOf(part.program, grid.sharers(), FlatLayout::Ownership::anywhere, part.parts,
                                     graph::Role::parameter, request.bucketElements, grid.sharesGradients());
  const graph::Program program = withExchanges(trainingProgram(part.program, recompute), layout, grid, 0);
  const std::int64_t shard = layout.shardCount(grid.sharers() - 1), whole = layout.count();
  const std::int64_t masters = request.storage == DType::f32 ? 0 : 4;
  const std::int64_t begun = microBatchesInFlight(own.pipeline, grid.pipeline,
                                                  request.batchTokens / request.sequenceLength / grid.data / rows);
  return (grid.sharesWeights() ? shard : whole) * base::byteSize(request.storage) +
         (grid.sharesGradients() ? shard : whole) * 4 + shard * (8 + masters) +
         begun * (graph::planMemory(program).arenaBytes + bytesOfRole(program, graph::Role::input) +
                  bytesOfRole(program, graph::Role::output));
}

// Of the fullest of its ranks; replicas are alike.
std::int64_t plannedBytes(const PlanRequest& request, const Grid& grid, Recompute recompute, std::int64_t rows) {
  std::int64_t most = 0;
  for (int stage = 0; stage < grid.pipeline; ++stage) {
    for (const int tensor : {0, grid.tensor - 1}) {
      const Coordinates own{.pipeline = stage, .tensor = tensor};
      most = std::max(most, plannedBytes(request, grid, recompute, rows, own));
      if (grid.tensor == 1) break;
    }
  }
  return most;
}

std::vector<Grid> gridsWithZero(int ranks, const PlanRequest& request) {
  std::vector<Grid> grids;
  for (Grid grid : fittingGrids(ranks, request.configuration, request.sequenceLength)) {
    for (grid.zero = grid.replicas() > 1 ? 0 : 1; grid.zero <= (grid.replicas() > 1 ? 3 : 1); ++grid.zero) {
      grids.push_back(grid);
    }
  }
  return grids;
}

// Every grid and stage of ZeRO with few ranks; recomputation, rows and storage take turns.
TEST(PlannersMemory, isThatOfTheFullestRankWithinFivePercentOnEveryGrid) {
  constexpr const char* tied = R"(, "tie_word_embeddings": true)";
  std::size_t turn = 0;
  for (const model::Configuration& configuration :
       {llama(1), llama(7), llama(9, tied), llama(7, R"(, "vocab_size": 3000)"), gpt2(6)}) {
    for (const int ranks : {1, 2, 4, 6}) {
      const PlanRequest any = requestOf(configuration, machine(1, ranks), 24);
      for (const Grid& grid : gridsWithZero(ranks, any)) {
        PlanRequest request = any;
        request.storage = turn % 4 == 3 ? DType::bf16 : DType::f32;
        const auto recompute = static_cast<Recompute>(turn % 3);
        const std::int64_t rows = turn % 2 == 0 ? 1 : 4;
        ++turn;
        const auto planned = static_cast<double>(plannedBytes(request, grid, recompute, rows));
        const PredictedMemory memory = predict(request, grid, recompute, rows).memory;
        EXPECT_NEAR(static_cast<double>(memory.total()) / planned, 1, 0.05)
            << configuration.type << " of " << configuration.layers << " layers and " << configuration.vocabularySize
            << " tokens, " << grid.text() << ", recompute " << recomputeText(recompute) << ", " << rows
            << " rows: weights " << memory.weights << ", gradients " << memory.gradients << ", states "
            << memory.optimizerStates << ", buckets " << memory.buckets << ", activations " << memory.activations
            << "; planned " << planned;
      }
    }
  }
  EXPECT_GT(turn, 200u);
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
  EXPECT_EQ(memory(2).gradients, whole.gradients / 4);
  EXPECT_EQ(memory(2).weights, whole.weights);
  EXPECT_EQ(memory(3).weights, whole.weights / 4);
  for (const int zero : {0, 1}) {
    EXPECT_EQ(memory(zero).activations, whole.activations);
    EXPECT_EQ(memory(zero).buckets, 0);
  }
  // The table of tokens is the largest bucket; with a layer's two more are alive at most.
  const std::int64_t table = 500 * 64 * 4;
  for (const int zero : {2, 3}) EXPECT_GE(memory(zero).buckets, table);
  EXPECT_LT(memory(2).buckets, whole.gradients);
  EXPECT_LT(memory(3).buckets, whole.gradients + whole.weights);
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
  // About half of the layers for two micro batches.
  EXPECT_GT(activations(2), activations(1) / 2);
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
  // And the weights for each pass of each: all of them forward, and what the backward pass reads again.
  const Grid grid{.data = 4, .zero = 3};
  const PartitionedProgram part = lossPart(request.configuration, 1, request.sequenceLength, request.storage, grid, {});
  const FlatLayout layout = layoutOf(part.program, 4, FlatLayout::Ownership::anywhere, part.parts,
                                     graph::Role::parameter, request.bucketElements, true);
  const graph::Program program = withExchanges(trainingProgram(part.program, Recompute::nothing), layout, grid, 0);
  double gathered = 0;
  for (const graph::Node& node : program.nodes()) {
    if (node.op != graph::Operator::gatherWeights) continue;
    gathered += static_cast<double>(program.tensor(node.outputs[0]).shape.count()) * 4;
  }
  EXPECT_NEAR(data(3), 2 * once + 2 * gathered * 3 / 4 / 1e8, 1e-9 * once);
  EXPECT_GT(gathered, 1.5 * bytes);
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
  const double byHand = 4 * (6 * 8 + 4) * rows / 2 / 1e9;
  EXPECT_NEAR(plan.time.tensor, byHand, 0.01 * byHand);  // beside these, the parts of the log-sum-exp
  const graph::Program program = trainingProgram(
      lossPart(request.configuration, 2, request.sequenceLength, request.storage, plan.grid, {}).program,
      Recompute::nothing);
  const double flops = graph::totalCost(program).flops;
  EXPECT_NEAR(plan.time.compute, 4 * flops / 1e9, 1e-9 * plan.time.compute);
}

TEST(PlannersTime, ofAPipelineFillsAndDrains) {
  const PlanRequest request = requestOf(llama(6), machine(1, 2));
  const Plan plan = predict(request, {.pipeline = 2}, Recompute::nothing, 2);
  EXPECT_NEAR(plan.time.bubble, plan.time.compute / 4, 1e-12);
  const double alone = predict(request, Grid{}, Recompute::nothing, 2).time.compute;
  EXPECT_GE(plan.time.compute, alone / 2);
}

TEST(PlannersTime, ofAPipelineWhoseRanksShareProcessorsIsThatOfAllTheirWork) {
  PlanRequest request = requestOf(llama(6), machine(1, 2));
  const auto seconds = [&](double sharing) {
    request.cluster.sharing = sharing;
    const PredictedTime time = predict(request, {.pipeline = 2}, Recompute::nothing, 2).time;
    return time.compute + time.bubble;
  };
  // Rates are those of a rank while all compute: on one processor for two, the stages' work in all takes as long as
  // that of a rank that has its half of the processor all the time.
  const double alone = predict(request, Grid{}, Recompute::nothing, 2).time.compute;
  EXPECT_NEAR(seconds(2), std::max(alone / 2, seconds(1) / 2), 1e-9 * alone);
  EXPECT_LT(seconds(2), seconds(1));
  EXPECT_GE(seconds(100), alone / 2 * (1 - 1e-9));
}

TEST(PlannersMemory, countsTheRoomOfSumsWhereRanksExchangeOnTheHost) {
  PlanRequest request = requestOf(llama(6), machine(1, 4));
  const auto room = [&](const Grid& grid) { return predict(request, grid, Recompute::nothing, 1).memory.exchanges; };
  EXPECT_EQ(room({.data = 4}), 0);
  request.cluster.exchangesOnHost = true;
  const std::int64_t gradients = predict(request, {.data = 4}, Recompute::nothing, 1).memory.gradients;
  EXPECT_EQ(room({.data = 4, .zero = 0}), gradients);  // all of them are in one bucket
  // Of the rank's own quarter what the three others send, in whole segments.
  EXPECT_GE(room({.data = 4}), gradients * 3 / 4);
  EXPECT_EQ(room({.pipeline = 4}), 0);
  request.bucketElements = gradients / 4 / 8;
  EXPECT_EQ(room({.data = 4, .zero = 0}), gradients / 8);
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
  request.grid = Grid{.pipeline = 2, .data = 2, .virtualStages = 2};
  EXPECT_NE(refusalOf(request).find("the planner does not predict virtual stages"), std::string::npos);
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
