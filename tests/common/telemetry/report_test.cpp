// report.html shows what was recorded, needs nothing else, and breaks on nothing that stands in the files.

#include "common/telemetry/report.h"

#include <gtest/gtest.h>

#include "common/telemetry/metrics.h"

namespace tandem::telemetry {
namespace {

std::string metricsOf(int steps) {
  std::string text;
  for (int step = 1; step <= steps; ++step) {
    StepMetrics metrics{.step = step, .loss = 5.0 / step, .stepSeconds = 1, .tokensPerSecond = 1000};
    metrics.ranks = {{.computeSeconds = 0.5, .clockMegahertz = 2405}, {.computeSeconds = 0.6, .clockMegahertz = 799}};
    text += toJson(metrics) + "\n";
  }
  return text + toJson(EvaluationMetrics{.step = steps, .evaluation = "val.h5", .loss = 3}) + "\n";
}

std::string pageOf(std::string_view metrics, std::string_view run = "{}", std::string_view events = {}) {
  return reportHtml(readRecord(metrics, run, events));
}

std::size_t countOf(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(Report, showsHowItStandsCurvesRanksEventsSamplesAndOptions) {
  const std::string events =
      R"({"time":"2026-12-01T10:00:00Z","step":2,"event":"straggler","text":"rank 1 on <b> computes at 0.41 x"})"
      "\n"
      R"({"step":3,"event":"sample","prompt":"Once","text":" upon <i>"})"
      "\n"
      R"({"step":3,"event":"resume","text":"on 2 ranks"})";
  const std::string page = pageOf(
      metricsOf(5), R"({"program": "pretrain", "hosts": ["spark-a", "spark-b"], "options": {"steps": "9"}})", events);
  for (const char* part :
       {"5 steps recorded", "<b>5 of 9</b>", ">Loss <small>by step<", ">on val.h5</span>",
        ">Clock in MHz, by rank <small>", "rank 1</span>", "<td>spark-b</td>", "<td>spark-b</td><td>60.0 %</td>",
        "799 MHz", "<td>straggler</td><td>rank 1 on &lt;b&gt; computes at 0.41 x</td>", "2026-12-01 10:00:00Z",
        "<b>Once</b> upon &lt;i&gt;", "--steps", "pretrain", "prefers-color-scheme:dark", "width=device-width"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(page.find("Power in W"), std::string::npos);  // nobody told
  EXPECT_NE(page.find(">clock<"), std::string::npos);
  EXPECT_EQ(page.find(">power<"), std::string::npos);
  EXPECT_EQ(countOf(page, "class=\"mark\""), 2 * countOf(page, "<figure>"));
}

TEST(Report, showsTheGradientsNormByPartOfTheModelWhereItWasRecorded) {
  StepMetrics metrics{.step = 1, .gradientNorm = 5, .gradientNormGroups = {{"embedding", 3}, {"layer 0", 4}}};
  const std::string page = pageOf(toJson(metrics));
  EXPECT_NE(page.find("layer 0</span>"), std::string::npos);
  EXPECT_EQ(pageOf(metricsOf(3)).find("by part of the model"), std::string::npos);
}

TEST(Report, needsNoNetworkAndNoScript) {
  const std::string page = pageOf(metricsOf(3));
  EXPECT_EQ(page.find("http"), std::string::npos);
  EXPECT_EQ(page.find("<script"), std::string::npos);
}

TEST(Report, whatStandsInTheFilesIsText) {
  const std::string page = pageOf(metricsOf(3), R"({"options": {"output": "</table><script>"}})");
  EXPECT_NE(page.find("&lt;/table&gt;&lt;script&gt;"), std::string::npos);
  EXPECT_EQ(page.find("<script"), std::string::npos);
}

TEST(Report, staysSmallForALongRun) {
  const std::string page = pageOf(metricsOf(1500));
  EXPECT_LT(page.size(), 300'000u);
  EXPECT_NE(page.find("1500 steps recorded"), std::string::npos);
}

TEST(Report, ofNothingOrOfDamagedFilesIsStillAPage) {
  for (const char* metrics : {"", "{\n", "[1]\n{\"step\": \"x\"}\n", "{\"step\": 1, \"loss\": null}\n",
                              "{\"step\": 1, \"rank_clock_megahertz\": [null, \"x\"]}\n",
                              "{\"step\": 1e300, \"event\": \"sample\", \"loss\": 1}\n{\"step\": -1, \"loss\": 1}\n"}) {
    const std::string page = pageOf(metrics, "nothing", metrics);
    EXPECT_TRUE(page.ends_with("</html>\n")) << metrics;
    EXPECT_EQ(countOf(page, "<polyline"), 0u) << metrics;
  }
}

TEST(ReportPace, thePageTakesAHundredthOfTheTimeAtMost) {
  using Seconds = std::chrono::duration<double>;
  ReportPace pace;
  auto now = ReportPace::Clock::time_point(std::chrono::hours(1));
  const auto later = [&](double seconds) {
    return now + std::chrono::duration_cast<ReportPace::Clock::duration>(Seconds(seconds));
  };
  EXPECT_TRUE(pace.isDue(now));
  pace.wrote(now, later(0.002));
  EXPECT_FALSE(pace.isDue(later(0.19)));
  EXPECT_TRUE(pace.isDue(later(0.21)));
  now = later(10);
  pace.wrote(now, later(2.2));  // 10,000 steps of 64 ranks
  EXPECT_FALSE(pace.isDue(later(219)));
  EXPECT_TRUE(pace.isDue(later(221)));
}

}  // namespace
}  // namespace tandem::telemetry
