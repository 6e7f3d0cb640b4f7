// metrics.jsonl: names of the design, numbers that read back exactly, and a file that survives a crash.

#include "common/telemetry/metrics.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "common/base/files.h"
#include "tests/common/data/expect_error.h"
#include "tests/common/data/temporary_folder.h"

namespace tandem::telemetry {
namespace {

using nlohmann::json;

std::set<std::string> names(const json& object) {
  std::set<std::string> result;
  for (const auto& [name, value] : object.items()) result.insert(name);
  return result;
}

std::string stepLine(std::int64_t step) { return toJson(StepMetrics{.step = step, .loss = 1.5}); }

TEST(Metrics, aStepHasTheNamesOfTheDesign) {
  const json line = json::parse(stepLine(1));
  for (const char* name :
       {"step", "tokens", "loss", "learning_rate", "gradient_norm", "step_seconds", "compute_seconds", "wait_seconds",
        "communication_seconds", "data_seconds", "tokens_per_second", "model_flops_per_second", "mfu",
        "peak_memory_bytes", "loss_scale", "skipped"}) {
    EXPECT_TRUE(line.contains(name)) << name;
  }
}

TEST(Metrics, aStepHasWhatEachRankReportsAndLeavesOutWhatNoneDoes) {
  StepMetrics metrics{.step = 1, .tokensPerSecond = 1000, .powerWatts = 50};
  metrics.ranks = {{.computeSeconds = 0.5, .checkpointSeconds = 2, .clockMegahertz = 2405, .majorFaults = 7},
                   {.computeSeconds = 1.0 / 3}};
  metrics.straggler = "rank 1";
  const json line = json::parse(toJson(metrics));
  EXPECT_EQ(line.at("rank_compute_seconds"), json({0.5, 0.333333}));
  EXPECT_EQ(line.at("rank_clock_megahertz"), json({2405.0, nullptr}));
  EXPECT_EQ(line.at("rank_checkpoint_seconds"), json({2.0, nullptr}));
  EXPECT_EQ(line.at("rank_major_faults"), json({7.0, nullptr}));
  EXPECT_FALSE(line.contains("rank_power_watts"));
  EXPECT_EQ(line.at("tokens_per_joule"), 20);
  EXPECT_EQ(line.at("straggler"), "rank 1");
  EXPECT_FALSE(json::parse(stepLine(1)).contains("straggler"));
  EXPECT_FALSE(json::parse(stepLine(1)).contains("tokens_per_joule"));
}

TEST(Metrics, anEvaluationHasTheNamesOfTheDesignAndItsPerplexity) {
  const EvaluationMetrics metrics{.step = 7, .evaluation = "val.h5", .loss = 2, .bitsPerByte = 0.8, .tokens = 99};
  const json line = json::parse(toJson(metrics));
  EXPECT_EQ(names(line),
            (std::set<std::string>{"step", "evaluation", "loss", "perplexity", "bits_per_byte", "tokens"}));
  EXPECT_EQ(line["evaluation"], "val.h5");
  EXPECT_DOUBLE_EQ(line["perplexity"].get<double>(), std::exp(2.0));
}

TEST(Metrics, numbersReadBackExactly) {
  const double odd = 0.1 + 0.2, tiny = std::numeric_limits<double>::denorm_min();
  const json line =
      json::parse(toJson(StepMetrics{.tokens = std::int64_t{1} << 62, .loss = odd, .gradientNorm = tiny}));
  EXPECT_EQ(line["loss"].get<double>(), odd);
  EXPECT_EQ(line["gradient_norm"].get<double>(), tiny);
  EXPECT_EQ(line["tokens"].get<std::int64_t>(), std::int64_t{1} << 62);
}

TEST(Metrics, everyLineIsJsonWhateverStandsInIt) {
  StepMetrics metrics{.step = 1, .loss = -0.0, .learningRate = 1e-300, .gradientNorm = 1e22, .powerWatts = 1e-7};
  metrics.gradientNormGroups = {{"layer 0", 0.5}, {"head", std::numeric_limits<double>::infinity()}};
  metrics.preference = PreferenceMetrics{.rewardAccuracy = 0.75, .pairs = 4};
  metrics.ranks = {{.computeSeconds = 1.23456789e9, .availableBytes = 130661999616.0}};
  metrics.straggler = "rank 1 on \"b\"\\\n\t";
  const json line = json::parse(toJson(metrics));
  EXPECT_EQ(line["learning_rate"].get<double>(), 1e-300);
  EXPECT_EQ(line["gradient_norm"].get<double>(), 1e22);
  EXPECT_EQ(line["gradient_norm_groups"], json({{"layer 0", 0.5}, {"head", nullptr}}));
  EXPECT_EQ(line["reward_accuracy"], 0.75);
  EXPECT_EQ(line["pairs"], 4);
  EXPECT_EQ(line["rank_compute_seconds"], json({1.23457e9}));
  EXPECT_EQ(line["rank_available_bytes"], json({130662000000.0}));
  EXPECT_EQ(line["straggler"], metrics.straggler);
  EXPECT_EQ(json::parse(toJson(EvaluationMetrics{.evaluation = "a \"b\".h5"}))["evaluation"], "a \"b\".h5");
}

TEST(Metrics, whatIsNoNumberOrNotKnownIsNull) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  const json line = json::parse(toJson(StepMetrics{.loss = nan, .gradientNorm = infinity, .skipped = true}));
  EXPECT_TRUE(line["loss"].is_null());
  EXPECT_TRUE(line["gradient_norm"].is_null());
  EXPECT_TRUE(line["mfu"].is_null());
  EXPECT_EQ(line["skipped"], true);
}

class MetricsFileTest : public testing::Test {
 protected:
  std::string content() const { return base::readFile(path_); }

  data::TemporaryFolder folder_;
  std::filesystem::path path_ = folder_.path() / "metrics.jsonl";
};

TEST_F(MetricsFileTest, appendsLinesToWhatIsThere) {
  MetricsFile(path_).append("{\"step\":1}");
  MetricsFile file(path_);
  file.append("{\"step\":2}");
  file.sync();
  EXPECT_EQ(content(), "{\"step\":1}\n{\"step\":2}\n");
}

TEST_F(MetricsFileTest, isCutBackToTheStepThatARunResumesFrom) {
  MetricsFile file(path_);
  for (std::int64_t step = 1; step <= 4; ++step) file.append(stepLine(step));
  file.append(toJson(EvaluationMetrics{.step = 2, .evaluation = "val.h5"}));
  file.append(toJson(EvaluationMetrics{.step = 4, .evaluation = "val.h5"}));
  file.cutBackTo(2, 2);
  file.append(stepLine(3));
  std::istringstream lines(content());
  std::vector<std::int64_t> steps;
  for (std::string line; std::getline(lines, line);) steps.push_back(json::parse(line)["step"]);
  EXPECT_EQ(steps, (std::vector<std::int64_t>{1, 2, 2, 3}));
}

TEST_F(MetricsFileTest, anEvaluationThatTheCheckpointDoesNotKnowOfIsDropped) {
  MetricsFile file(path_);
  for (std::int64_t step = 1; step <= 2; ++step) {
    file.append(stepLine(step));
    file.append(toJson(EvaluationMetrics{.step = step, .evaluation = "val.h5"}));
  }
  file.cutBackTo(2, 1);
  EXPECT_EQ(content(), stepLine(1) + "\n" + toJson(EvaluationMetrics{.step = 1, .evaluation = "val.h5"}) + "\n" +
                           stepLine(2) + "\n");
  file.cutBackTo(2, -1);
  EXPECT_EQ(content(), stepLine(1) + "\n" + stepLine(2) + "\n");
}

TEST_F(MetricsFileTest, aLineThatACrashLeftUnfinishedIsDropped) {
  folder_.write("metrics.jsonl", stepLine(1) + "\n" + stepLine(2).substr(0, 20));
  MetricsFile file(path_);
  file.cutBackTo(5, 5);
  file.append(stepLine(2));
  EXPECT_EQ(content(), stepLine(1) + "\n" + stepLine(2) + "\n");
}

TEST_F(MetricsFileTest, linesOfSomethingElseAreDroppedByACut) {
  folder_.write("metrics.jsonl", "\n[1, 2]\n{\"step\":\"two\"}\n{\"other\":1}\n" + stepLine(1) + "\n");
  MetricsFile file(path_);
  file.cutBackTo(5, 5);
  EXPECT_EQ(content(), stepLine(1) + "\n");
}

TEST(Metrics, linesWithAStepThatNoRunHasAreDropped) {
  const std::string ours = stepLine(1) + "\n";
  EXPECT_EQ(linesUpTo("{\"step\":18446744073709551615}\n{\"step\":-1}\n{\"step\":1.0}\n" + ours, 5, 5), ours);
}

TEST_F(MetricsFileTest, aFileThatCannotBeOpenedIsNamed) {
  data::expectError(base::ErrorKind::file, {"absent/metrics.jsonl", "No such file"},
                    [&] { MetricsFile(folder_.path() / "absent" / "metrics.jsonl"); });
}

TEST_F(MetricsFileTest, aFullDiskIsAnErrorThatNamesTheFile) {
  MetricsFile file("/dev/full");
  data::expectError(base::ErrorKind::file, {"/dev/full", "No space left"}, [&] { file.append("{}"); });
}

TEST(Metrics, theProcessKnowsItsPeakMemory) { EXPECT_GT(peakResidentBytes(), 1 << 20); }

}  // namespace
}  // namespace tandem::telemetry
