// What --dry-run tells: the numbers of the model's definition, and memory as it will be.

#include <gtest/gtest.h>

#include <iterator>
#include <set>
#include <sstream>

#include "common/base/error.h"
#include "common/train/memory_need.h"
#include "common/train/trainer.h"
#include "tests/common/data/temporary_folder.h"

namespace tandem::train {
namespace {

const std::string gpt2 = R"({"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12,
  "n_positions": 1024})";

class Plan : public testing::Test {
 protected:
  Plan() {
    options_.model = folder_.write("model.json", gpt2);
    options_.batchTokens = 4 * 256;
    options_.sequenceLength = 256;
  }
  std::string text(int ranks = 1) const { return describePlan(options_, ranks); }
  // Of the table's row of this kind, whose columns are: kind, tensors where there are some, size, share.
  std::string bytesOf(const std::string& kind, int ranks = 1) const {
    std::istringstream lines(text(ranks));
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with(kind + "  ")) continue;
      std::istringstream columns(line.substr(kind.size()));
      std::vector<std::string> words{std::istream_iterator<std::string>(columns), {}};
      return words.size() < 3 ? "" : words[words.size() - 3] + " " + words[words.size() - 2];
    }
    return "";
  }

  data::TemporaryFolder folder_;
  TrainOptions options_;
};

TEST_F(Plan, tellsParametersAndTheirMemory) {
  const std::string plan = text();
  EXPECT_NE(plan.find("124439808 parameters (124.4 M), 1 ranks"), std::string::npos) << plan;
  EXPECT_EQ(bytesOf("parameters"), "474.7 MiB") << plan;
  EXPECT_EQ(bytesOf("gradients"), "474.7 MiB") << plan;
  EXPECT_EQ(bytesOf("optimizer states"), "949.4 MiB") << plan;
}

TEST_F(Plan, tellsEachKindOfMemoryOnce) {
  std::istringstream lines(text());
  std::set<std::string> kinds;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_TRUE(kinds.insert(line.substr(0, line.find("  ", 2))).second) << line;
    EXPECT_FALSE(line.starts_with("weights")) << line;  // they are the parameters
  }
}

TEST_F(Plan, sharesTheOptimizerStatesOverRanks) { EXPECT_EQ(bytesOf("optimizer states", 2), "474.7 MiB") << text(2); }

TEST_F(Plan, countsMastersWhereWeightsAreBfloat16) {
  options_.storage = base::DType::bf16;
  const std::string plan = text();
  EXPECT_EQ(bytesOf("parameters"), "237.4 MiB") << plan;
  EXPECT_EQ(bytesOf("optimizer states and masters"), "1.4 GiB") << plan;
}

TEST_F(Plan, countsHalfTheStatesInBfloat16) {
  options_.optimizer.states = base::DType::bf16;
  EXPECT_EQ(bytesOf("optimizer states"), "474.7 MiB") << text();
  options_.storage = base::DType::f16;
  EXPECT_EQ(bytesOf("optimizer states and masters"), "949.4 MiB") << text();
}

TEST_F(Plan, statesOnTheHostAreToldApart) {
  options_.storage = base::DType::bf16;
  options_.optimizer.statesOnHost = true;
  const std::string plan = text();
  EXPECT_EQ(bytesOf("optimizer states and masters"), "") << plan;
  EXPECT_NE(plan.find("of rank 0 on its host: optimizer states and masters of 1.4 GiB"), std::string::npos) << plan;
}

TEST_F(Plan, recomputationSavesActivations) {
  auto activations = [&] { return std::stod(bytesOf("activations at the peak")); };
  const double all = activations();
  options_.recompute = graph::Recompute::full;
  EXPECT_LT(activations(), 0.8 * all);
}

TEST_F(Plan, countsTheActivationsOfEveryMicroBatchInFlight) {
  options_.model = folder_.write("even.json", R"({"model_type": "gpt2", "vocab_size": 64, "n_embd": 128, "n_layer": 12,
    "n_head": 4, "n_positions": 1024})");  // whose loss costs next to nothing, so that all stages have as many layers
  const auto activations = [&](const sharding::Grid& grid, std::int64_t microBatches) {
    options_.grid = grid;
    options_.batchTokens = microBatches * 256;
    options_.microBatch = 1;
    return std::stod(bytesOf("activations at the peak", grid.ranks()));
  };
  const sharding::Grid two{.pipeline = 2};
  const double one = activations(two, 1);
  EXPECT_NEAR(activations(two, 2), 2 * one, 0.01 * one);
  EXPECT_NEAR(activations(two, 8), 2 * one, 0.01 * one) << "no more than there are stages behind";
  EXPECT_NE(text(2).find("of rank 0, with up to 2 micro batches in flight:"), std::string::npos) << text(2);
  const std::int64_t need = memoryNeed(options_, 2).computing;
  options_.batchTokens = 256;
  EXPECT_GT(need - memoryNeed(options_, 2).computing, static_cast<std::int64_t>(one * (1 << 20)));
  // Each run has half of the layers of a stage: six of them weigh as much as three micro batches of a whole one.
  const sharding::Grid interleaved{.pipeline = 2, .virtualStages = 2};
  EXPECT_NEAR(activations(interleaved, 8), 3 * one, 0.05 * 3 * one);
  EXPECT_NE(text(2).find("with up to 4 and 2 micro batches in flight in its runs of layers:"), std::string::npos)
      << text(2);
}

TEST_F(Plan, findsTheLargestMicroBatchOfInterleavedStages) {
  options_.grid = sharding::Grid{.pipeline = 2, .virtualStages = 2};
  options_.batchTokens = 12 * 256;
  EXPECT_EQ(largestMicroBatch(options_, 2, {.bytes = std::int64_t{1} << 50, .isOfHost = false}), 6);
}

TEST_F(Plan, findsTheLargestMicroBatchThatFits) {
  const auto need = [&](std::int64_t rows) {
    options_.microBatch = rows;
    return memoryNeed(options_, 1);
  };
  const MemoryNeed four = need(4);
  const auto largest = [&](std::int64_t bytes, bool isOfHost) {
    return largestMicroBatch(options_, 1, {.bytes = bytes, .isOfHost = isOfHost});
  };
  EXPECT_EQ(largest(four.computing, false), 4);
  EXPECT_EQ(largest(four.computing - 1, false), 2);
  EXPECT_EQ(largest(four.computing + four.checkpointCopy, true), 4);
  EXPECT_EQ(largest(std::int64_t{1} << 50, true), 4);  // all rows of the rank
  // States on the host leave their room to activations, unless it is the same memory.
  options_.optimizer.statesOnHost = true;
  const std::int64_t states = std::int64_t{124439808} * 8;
  EXPECT_EQ(need(4).hostStates, states);
  EXPECT_EQ(largest(four.computing - states, false), 4);
  EXPECT_EQ(largest(four.computing - states - 1, false), 2);
  EXPECT_EQ(largest(four.computing + four.checkpointCopy, true), 4);
  EXPECT_EQ(largest(four.computing + four.checkpointCopy - 1, true), 2);
  try {
    largest(need(1).computing - 1, false);
    ADD_FAILURE() << "not even one row fits";
  } catch (const base::Error& error) {
    EXPECT_EQ(error.kind(), base::ErrorKind::usage);
    EXPECT_NE(error.message().find("one row of 256 tokens needs"), std::string::npos) << error.message();
    EXPECT_NE(error.message().find("--recompute full"), std::string::npos) << error.message();
  }
}

TEST(ModelFlops, areSixNPlusTwelveLdT) {
  const model::Configuration c = model::parseConfiguration(gpt2, "of the test");
  EXPECT_DOUBLE_EQ(modelFlopsPerToken(c, 124439808, 1024), 6.0 * 124439808 + 12.0 * 12 * 768 * 1024);
}

}  // namespace
}  // namespace tandem::train
