#include "common/telemetry/run_comparison.h"

#include <algorithm>
#include <limits>
#include <set>

#include "common/base/json.h"
#include "common/base/units.h"
#include "common/telemetry/detail/page.h"
#include "common/telemetry/median.h"

namespace tandem::telemetry {
namespace {

using nlohmann::json;
using Rows = std::vector<std::vector<std::string>>;

constexpr double partOfLoss = 0.05;  // of the steps, that a loss is the mean of: one step's is noise

// Of the last steps among those that have seen up to so many tokens.
std::optional<double> lossUpTo(const RunRecord& record, double tokens) {
  std::vector<double> losses;
  for (const json& step : record.steps) {
    const std::optional<double> loss = numberOf(step, "loss");
    if (loss && numberOf(step, "tokens").value_or(0) <= tokens) losses.push_back(*loss);
  }
  if (losses.empty()) return std::nullopt;
  const auto count =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(partOfLoss * static_cast<double>(losses.size())));
  double sum = 0;
  for (auto loss = losses.end() - count; loss != losses.end(); ++loss) sum += *loss;
  return sum / static_cast<double>(count);
}

std::optional<double> medianOf(const std::vector<json>& steps, const std::string& key) {
  std::vector<double> values = valuesOf(steps, key);
  if (values.empty()) return std::nullopt;
  return median(std::move(values));
}

double tokensOf(const RunRecord& record) {
  return record.steps.empty() ? 0 : numberOf(record.steps.back(), "tokens").value_or(0);
}

std::optional<double> bestEvaluation(const RunRecord& record, const std::string& dataset) {
  std::optional<double> best;
  for (const json& line : record.evaluations) {
    const std::optional<double> loss = numberOf(line, "loss");
    if (loss && line["evaluation"] == dataset && (!best || *loss < *best)) best = loss;
  }
  return best;
}

RunSummary summaryOf(const ComparedRun& run, double sharedTokens, const std::string& evaluation) {
  const RunRecord& record = run.record;
  RunSummary summary{.name = run.name,
                     .steps = std::ssize(record.steps),
                     .tokens = tokensOf(record),
                     .loss = lossUpTo(record, std::numeric_limits<double>::infinity()),
                     .lossAtShared = lossUpTo(record, sharedTokens),
                     .evaluationLoss = bestEvaluation(record, evaluation),
                     .tokensPerSecond = medianOf(record.steps, "tokens_per_second"),
                     .mfu = medianOf(record.steps, "mfu"),
                     .tokensPerJoule = medianOf(record.steps, "tokens_per_joule")};
  for (const double seconds : valuesOf(record.steps, "step_seconds")) summary.seconds += seconds;
  return summary;
}

// What was asked of a run and what it ran on, by name.
std::map<std::string, std::string> circumstances(const RunRecord& record) {
  std::map<std::string, std::string> all;
  for (const auto& [name, value] : record.options) {
    if (name != "output") all["--" + name] = value;
  }
  for (const char* name : {"program", "version", "ranks", "hosts"}) {
    const auto found = record.description.find(name);
    if (found != record.description.end()) all[name] = found->is_string() ? found->get<std::string>() : found->dump();
  }
  return all;
}

std::vector<Difference> differencesOf(const std::vector<ComparedRun>& runs) {
  std::vector<std::map<std::string, std::string>> all;
  std::set<std::string> names;
  for (const ComparedRun& run : runs) {
    all.push_back(circumstances(run.record));
    for (const auto& [name, value] : all.back()) names.insert(name);
  }
  std::vector<Difference> differences;
  for (const std::string& name : names) {
    Difference difference{.option = name, .values = {}};
    for (const auto& own : all) {
      const auto found = own.find(name);
      difference.values.push_back(found == own.end() ? std::nullopt : std::optional(found->second));
    }
    const bool same = std::ranges::all_of(difference.values, [&](const auto& v) { return v == difference.values[0]; });
    if (!same) differences.push_back(std::move(difference));
  }
  return differences;
}

std::string told(const std::optional<double>& value, int digits = 5) {
  return value ? page::readable(*value, digits) : "-";
}

Rows summaryRows(const RunComparison& comparison) {
  const std::string shared = base::formatCount(comparison.sharedTokens);
  Rows rows{{"run", "steps", "tokens", "loss", "loss at " + shared + " tokens", "best on " + comparison.evaluation,
             "tokens/s", "mfu", "tokens/J", "time"}};
  for (const RunSummary& run : comparison.runs) {
    rows.push_back({run.name, std::to_string(run.steps), base::formatCount(run.tokens), told(run.loss),
                    told(run.lossAtShared), told(run.evaluationLoss), told(run.tokensPerSecond, 4), told(run.mfu, 3),
                    told(run.tokensPerJoule, 3), base::formatDuration(run.seconds)});
  }
  return page::withoutEmptyColumns(std::move(rows));
}

Rows differenceRows(const RunComparison& comparison) {
  Rows rows{{"differs"}};
  for (const RunSummary& run : comparison.runs) rows[0].push_back(run.name);
  for (const Difference& difference : comparison.differences) {
    rows.push_back({difference.option});
    for (const auto& value : difference.values) rows.back().push_back(value ? *value : "-");
  }
  return rows;
}

std::string aligned(const Rows& rows) {
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t column = 0; column < row.size(); ++column) {
      std::size_t width = 0;
      for (const auto& other : rows) width = std::max(width, other[column].size());
      line += row[column] + std::string(width - row[column].size() + 2, ' ');
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

// A value of each step, over its number, its tokens, or the hours that all steps up to it took.
enum class Abscissa { step, tokens, hours };

page::Series curve(const ComparedRun& run, const std::string& key, Abscissa abscissa, std::size_t hue) {
  page::Series series{.name = run.name, .points = {}, .hue = hue};
  double seconds = 0;
  for (const json& step : run.record.steps) {
    seconds += numberOf(step, "step_seconds").value_or(0);
    const double x = abscissa == Abscissa::step     ? numberOf(step, "step").value_or(0)
                     : abscissa == Abscissa::tokens ? numberOf(step, "tokens").value_or(0)
                                                    : seconds / 3600;
    if (const std::optional<double> value = numberOf(step, key)) series.points.emplace_back(x, *value);
  }
  return series;
}

page::Series evaluationCurve(const ComparedRun& run, const std::string& dataset, std::size_t hue) {
  page::Series series{.name = run.name, .points = {}, .hue = hue};
  for (const json& line : run.record.evaluations) {
    const std::optional<double> loss = numberOf(line, "loss");
    if (loss && line["evaluation"] == dataset) series.points.emplace_back(line["step"].get<double>(), *loss);
  }
  return series;
}

template <typename CurveOf>
std::string overlay(const std::string& title, const std::string& abscissa, const std::vector<ComparedRun>& runs,
                    bool fromZero, CurveOf&& curveOf) {
  page::Chart chart{.title = title, .series = {}, .abscissa = abscissa, .fromZero = fromZero, .marks = {}};
  for (std::size_t i = 0; i < runs.size(); ++i) chart.series.push_back(curveOf(runs[i], i));
  return page::drawn(std::move(chart));
}

}  // namespace

RunComparison compareRuns(const std::vector<ComparedRun>& runs) {
  RunComparison comparison;
  comparison.sharedTokens = std::numeric_limits<double>::infinity();
  for (const ComparedRun& run : runs) comparison.sharedTokens = std::min(comparison.sharedTokens, tokensOf(run.record));
  const std::vector<json>& evaluations = runs.front().record.evaluations;
  if (!evaluations.empty() && evaluations.front()["evaluation"].is_string()) {
    comparison.evaluation = evaluations.front()["evaluation"];
  }
  for (const ComparedRun& run : runs) {
    comparison.runs.push_back(summaryOf(run, comparison.sharedTokens, comparison.evaluation));
  }
  comparison.differences = differencesOf(runs);
  return comparison;
}

std::string toText(const RunComparison& comparison) {
  const std::string differences =
      comparison.differences.empty() ? "no option differs\n" : aligned(differenceRows(comparison));
  return aligned(summaryRows(comparison)) + "\n" + differences;
}

std::string toJson(const RunComparison& comparison) {
  using Json = nlohmann::ordered_json;
  const auto number = [](const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); };
  Json runs = Json::array(), differences = Json::object();
  for (const RunSummary& run : comparison.runs) {
    runs.push_back({{"run", run.name},
                    {"steps", run.steps},
                    {"tokens", run.tokens},
                    {"loss", number(run.loss)},
                    {"loss_at_shared_tokens", number(run.lossAtShared)},
                    {"evaluation_loss", number(run.evaluationLoss)},
                    {"tokens_per_second", number(run.tokensPerSecond)},
                    {"mfu", number(run.mfu)},
                    {"tokens_per_joule", number(run.tokensPerJoule)},
                    {"seconds", run.seconds}});
  }
  for (const Difference& difference : comparison.differences) {
    Json values = Json::array();
    for (const auto& value : difference.values) values.push_back(value ? Json(*value) : Json(nullptr));
    differences[difference.option] = std::move(values);
  }
  return base::jsonText(
      Json{{"shared_tokens", comparison.sharedTokens},
           {"evaluation", comparison.evaluation.empty() ? Json(nullptr) : Json(comparison.evaluation)},
           {"runs", runs},
           {"differences", differences}});
}

std::string toHtml(const RunComparison& comparison, const std::vector<ComparedRun>& runs) {
  std::string html = page::begin("Tandem: " + std::to_string(runs.size()) + " runs compared");
  html += page::table("How far they came", summaryRows(comparison)) + "<h2>Curves</h2><div class=\"charts\">\n";
  const auto over = [](const std::string& key, Abscissa abscissa) {
    return [=](const ComparedRun& run, std::size_t hue) { return curve(run, key, abscissa, hue); };
  };
  html += overlay("Loss", "step", runs, false, over("loss", Abscissa::step));
  html += overlay("Loss", "tokens", runs, false, over("loss", Abscissa::tokens));
  html += overlay("Loss", "hours", runs, false, over("loss", Abscissa::hours));
  html += overlay(
      "Loss on " + comparison.evaluation, "step", runs, false,
      [&](const ComparedRun& run, std::size_t hue) { return evaluationCurve(run, comparison.evaluation, hue); });
  html += overlay("Tokens per second", "step", runs, true, over("tokens_per_second", Abscissa::step));
  html += overlay("Share of the devices' peak (MFU)", "step", runs, true, over("mfu", Abscissa::step));
  html += overlay("Norm of the gradient", "step", runs, false, over("gradient_norm", Abscissa::step));
  html += overlay("Learning rate", "step", runs, true, over("learning_rate", Abscissa::step));
  html += "</div>\n" + page::table("In what they differ", differenceRows(comparison));
  return html + page::end();
}

}  // namespace tandem::telemetry
