// Runs side by side: numbers of each, the options that differ, and nothing else.

#include "common/telemetry/run_comparison.h"

#include <gtest/gtest.h>

#include <string>

#include "common/telemetry/metrics.h"

namespace tandem::telemetry {
namespace {

// A run of steps of 100 tokens and a quarter of an hour each.
ComparedRun runOf(const std::string& name, int steps, double loss, const std::string& options) {
  std::string metrics;
  for (int step = 1; step <= steps; ++step) {
    metrics += toJson(StepMetrics{.step = step,
                                  .tokens = step * 100,
                                  .loss = loss + 1.0 / step,
                                  .stepSeconds = 900,
                                  .tokensPerSecond = step == 1 ? 1.0 : 1000.0}) +
               "\n";
  }
  metrics += toJson(EvaluationMetrics{.step = 1, .evaluation = "val.h5", .loss = loss + 2}) + "\n";
  metrics += toJson(EvaluationMetrics{.step = steps, .evaluation = "val.h5", .loss = loss + 0.5}) + "\n";
  metrics += toJson(EvaluationMetrics{.step = steps, .evaluation = "other.h5", .loss = 0}) + "\n";
  return {name, readRecord(metrics, R"({"program": "pretrain", "options": )" + options + "}")};
}

const std::vector<ComparedRun> pair{runOf("a", 10, 3, R"({"seed": "1", "output": "a", "steps": "10"})"),
                                    runOf("b", 4, 2, R"({"seed": "1", "output": "b", "steps": "4", "fp8": "true"})")};

TEST(RunComparison, tellsHowFarEachCameAndTheLossWhereAllHaveBeen) {
  const RunComparison comparison = compareRuns(pair);
  ASSERT_EQ(comparison.runs.size(), 2u);
  const RunSummary& first = comparison.runs[0];
  EXPECT_EQ(first.steps, 10);
  EXPECT_EQ(first.tokens, 1000);
  EXPECT_DOUBLE_EQ(*first.loss, 3.1);
  EXPECT_EQ(comparison.sharedTokens, 400);
  EXPECT_DOUBLE_EQ(*first.lossAtShared, 3.25);
  EXPECT_DOUBLE_EQ(*comparison.runs[1].lossAtShared, 2.25);
  EXPECT_EQ(comparison.evaluation, "val.h5");
  EXPECT_EQ(first.evaluationLoss, 3.5);
  EXPECT_EQ(first.tokensPerSecond, 1000);  // not the first step's
  EXPECT_FALSE(first.mfu.has_value());
  EXPECT_EQ(first.seconds, 9000);
}

TEST(RunComparison, listsTheOptionsThatDifferButNotWhereTheRunsLie) {
  const RunComparison comparison = compareRuns(pair);
  ASSERT_EQ(comparison.differences.size(), 2u);
  EXPECT_EQ(comparison.differences[0].option, "--fp8");
  EXPECT_EQ(comparison.differences[0].values, (std::vector<std::optional<std::string>>{std::nullopt, "true"}));
  EXPECT_EQ(comparison.differences[1].option, "--steps");
  EXPECT_NE(toText(compareRuns({pair[0], pair[0]})).find("no option differs"), std::string::npos);
}

TEST(RunComparison, isATableOnTheTerminalAndADocumentForPrograms) {
  const RunComparison comparison = compareRuns(pair);
  const std::string text = toText(comparison);
  EXPECT_NE(text.find("run  steps  tokens  loss"), std::string::npos) << text;
  EXPECT_EQ(text.find("mfu"), std::string::npos) << "a column that no run fills";
  const nlohmann::json document = nlohmann::json::parse(toJson(comparison));
  EXPECT_EQ(document["runs"][1]["run"], "b");
  EXPECT_EQ(document["runs"][1]["mfu"], nullptr);
  EXPECT_EQ(document["differences"]["--fp8"], nlohmann::json({nullptr, "true"}));
}

TEST(RunComparison, isAPageWithACurveOfEachRunWithoutNetworkOrScript) {
  std::vector<ComparedRun> runs = pair;
  runs[1].name = "<b>";
  const std::string page = toHtml(compareRuns(runs), runs);
  for (const char* part : {"Loss <small>by step<", "Loss <small>by tokens<", "Loss <small>by hours<",
                           "Tokens per second", "Loss on val.h5", "&lt;b&gt;", "--fp8"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(page.find("http"), std::string::npos);
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_EQ(page.find("<b></"), std::string::npos);
}

TEST(RunComparison, bearsCountsThatAreTooLargeToTellFromTheirNeighbours) {
  const std::string metrics = R"({"step": 1, "tokens": 100000000000000000, "loss": 2})"
                              "\n"
                              R"({"step": 2, "tokens": 100000000000000016, "loss": 1})";
  const std::vector<ComparedRun> runs{{"long", readRecord(metrics, "{}")}};
  EXPECT_LT(toHtml(compareRuns(runs), runs).size(), 20'000u);
}

TEST(RunComparison, bearsRunsOfWhichNothingIsKnown) {
  const std::vector<ComparedRun> runs{{"empty", readRecord("", "no json")}, pair[0]};
  const RunComparison comparison = compareRuns(runs);
  EXPECT_FALSE(comparison.runs[0].loss.has_value());
  EXPECT_TRUE(toHtml(comparison, runs).ends_with("</html>\n"));
}

}  // namespace
}  // namespace tandem::telemetry
