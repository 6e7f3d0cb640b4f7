// report.html shows what was recorded, needs nothing else, and breaks on nothing that stands in the files.

#include "common/telemetry/report.h"

#include <gtest/gtest.h>

#include "common/telemetry/metrics.h"

namespace tandem::telemetry {
namespace {

std::string metricsOf(int steps) {
  std::string text;
  for (int step = 1; step <= steps; ++step) {
    StepMetrics metrics{.step = step, .loss = 5.0 / step, .tokensPerSecond = 1000};
    metrics.ranks = {{.computeSeconds = 0.5, .clockMegahertz = 2405}, {.computeSeconds = 0.6, .clockMegahertz = 799}};
    if (step == 2) metrics.straggler = "rank 1 on <b> computes at 0.41 x";
    text += toJson(metrics) + "\n";
  }
  return text + toJson(EvaluationMetrics{.step = steps, .evaluation = "val.h5", .loss = 3}) + "\n";
}

std::size_t countOf(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(Report, showsCurvesRanksEventsAndOptions) {
  const std::string page = reportHtml(metricsOf(5), R"({"program": "pretrain", "options": {"steps": "5"}})");
  for (const char* part : {"5 steps recorded", ">Loss<", ">Clock in MHz, by rank<", "rank 1</span>", "--steps",
                           "pretrain", "prefers-color-scheme:dark", "width=device-width"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(page.find("Power in W"), std::string::npos);  // nobody told
}

TEST(Report, needsNoNetworkAndNoScript) {
  const std::string page = reportHtml(metricsOf(3), "{}");
  EXPECT_EQ(page.find("http"), std::string::npos);
  EXPECT_EQ(page.find("<script"), std::string::npos);
}

TEST(Report, whatStandsInTheFilesIsText) {
  const std::string page = reportHtml(metricsOf(3), R"({"options": {"output": "</table><script>"}})");
  EXPECT_NE(page.find("rank 1 on &lt;b&gt; computes"), std::string::npos);
  EXPECT_EQ(page.find("<script"), std::string::npos);
}

TEST(Report, staysSmallForALongRun) {
  const std::string page = reportHtml(metricsOf(1500), "{}");
  EXPECT_LT(page.size(), 300'000u);
  EXPECT_NE(page.find("1500 steps recorded"), std::string::npos);
}

TEST(Report, ofNothingOrOfDamagedFilesIsStillAPage) {
  for (const char* metrics : {"", "{\n", "[1]\n{\"step\": \"x\"}\n", "{\"step\": 1, \"loss\": null}\n",
                              "{\"step\": 1, \"rank_clock_megahertz\": [null, \"x\"]}\n"}) {
    const std::string page = reportHtml(metrics, "nothing");
    EXPECT_TRUE(page.ends_with("</html>\n")) << metrics;
    EXPECT_EQ(countOf(page, "<polyline"), 0u) << metrics;
  }
}

}  // namespace
}  // namespace tandem::telemetry
