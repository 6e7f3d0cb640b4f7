#include "common/telemetry/report.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <set>
#include <utility>

#include "common/base/json.h"
#include "common/base/units.h"
#include "common/telemetry/detail/page.h"
#include "common/telemetry/median.h"

namespace tandem::telemetry {
namespace {

using nlohmann::json;
using page::Chart;
using page::Series;
using Rows = std::vector<std::vector<std::string>>;

constexpr std::size_t mostCurves = 16;      // of ranks
constexpr std::size_t mostEvents = 100;     // shown, the last ones
constexpr std::size_t mostSampleSteps = 4;  // whose samples are shown, the last ones

std::string textOf(const json& record, const std::string& key) {
  const auto found = record.find(key);
  if (found == record.end()) return {};
  return found->is_string() ? found->get<std::string>() : found->dump();
}

std::string percent(double part) {
  char text[16];
  std::snprintf(text, sizeof text, "%.1f %%", 100 * part);
  return text;
}

Series curve(const std::vector<json>& records, const std::string& key, const std::string& name = {},
             std::size_t hue = 0) {
  Series series{.name = name, .points = {}, .hue = hue};
  for (const json& record : records) {
    const std::optional<double> value = numberOf(record, key);
    if (value) series.points.emplace_back(record["step"].get<double>(), *value);
  }
  return series;
}

// A curve a rank, of a key that holds a list.
std::vector<Series> curvesOfRanks(const std::vector<json>& steps, const std::string& key) {
  std::vector<Series> all;
  for (const json& step : steps) {
    const auto values = step.find(key);
    if (values == step.end() || !values->is_array()) continue;
    for (std::size_t rank = 0; rank < std::min(values->size(), mostCurves); ++rank) {
      if (all.size() <= rank) all.push_back({.name = "rank " + std::to_string(rank), .points = {}, .hue = rank});
      if ((*values)[rank].is_number()) all[rank].points.emplace_back(step["step"], (*values)[rank].get<double>());
    }
  }
  return all;
}

std::vector<Series> curvesOfGroups(const std::vector<json>& steps) {
  std::vector<Series> all;
  for (const json& step : steps) {
    const auto groups = step.find("gradient_norm_groups");
    if (groups == step.end() || !groups->is_object()) continue;
    for (const auto& [name, norm] : groups->items()) {
      if (!norm.is_number()) continue;
      auto series = std::ranges::find(all, name, &Series::name);
      if (series == all.end()) {
        const std::size_t count = all.size();
        all.push_back({.name = name, .points = {}, .hue = count, .dashed = count >= 8});
        series = all.end() - 1;
      }
      series->points.emplace_back(step["step"].get<double>(), norm.get<double>());
    }
  }
  return all;
}

// The curve of each dataset that was evaluated, beside that of training.
std::vector<Series> lossCurves(const RunRecord& record) {
  std::vector<Series> all{curve(record.steps, "loss", "training")};
  std::set<std::string> datasets;
  for (const json& line : record.evaluations) datasets.insert(textOf(line, "evaluation"));
  for (const std::string& dataset : datasets) {
    std::vector<json> own;
    for (const json& line : record.evaluations) {
      if (textOf(line, "evaluation") == dataset) own.push_back(line);
    }
    all.push_back(curve(own, "loss", "on " + dataset, all.size()));
  }
  return all;
}

std::string tiles(const RunRecord& record) {
  std::vector<std::pair<std::string, std::string>> tiles;
  const auto add = [&](const std::string& name, const std::string& value) { tiles.emplace_back(name, value); };
  const auto addMedian = [&](const std::string& name, const std::string& key, auto&& write) {
    std::vector<double> values = valuesOf(record.steps, key);
    if (!values.empty()) add(name, write(median(std::move(values))));
  };
  const auto asked = record.options.find("steps");
  const bool knowsEnd = asked != record.options.end() && asked->second != "0";
  add("steps", textOf(record.steps.back(), "step") + (knowsEnd ? " of " + asked->second : std::string()));
  if (const std::vector<double> tokens = valuesOf(record.steps, "tokens"); !tokens.empty()) {
    add("tokens", base::formatCount(tokens.back()));
  }
  if (const std::vector<double> losses = valuesOf(record.steps, "loss"); !losses.empty()) {
    add("loss of the last step", page::readable(losses.back()));
  }
  if (const std::vector<double> losses = valuesOf(record.evaluations, "loss"); !losses.empty()) {
    add("best loss of evaluations", page::readable(*std::ranges::min_element(losses)));
  }
  addMedian("tokens per second", "tokens_per_second", [](double value) { return page::readable(value); });
  addMedian("MFU", "mfu", percent);
  addMedian("of the matrix rate", "matrix_rate_share", percent);
  addMedian("tokens per joule", "tokens_per_joule", [](double value) { return page::readable(value, 3); });
  double seconds = 0;
  for (const double one : valuesOf(record.steps, "step_seconds")) seconds += one;
  add("in steps", base::formatDuration(seconds));
  return page::tiles(tiles);
}

// Steps at which something happened that may have bent the curves.
std::vector<double> marksOf(const RunRecord& record) {
  std::set<double> marks;
  for (const json& event : record.events) {
    const std::string kind = textOf(event, "event");
    if (kind == "resume" || kind == "straggler" || kind == "loss_spike" || kind == "skipped") {
      marks.insert(event["step"].get<double>());
    }
  }
  return {marks.begin(), marks.end()};
}

std::string charts(const RunRecord& record) {
  const std::vector<json>& steps = record.steps;
  const std::vector<double> marks = marksOf(record);
  std::string html;
  const auto add = [&](const std::string& title, std::vector<Series> series, bool fromZero) {
    html += page::drawn(
        {.title = title, .series = std::move(series), .abscissa = "step", .fromZero = fromZero, .marks = marks});
  };
  add("Loss", lossCurves(record), false);
  add("Tokens per second", {curve(steps, "tokens_per_second")}, true);
  add("Share of the devices' peak (MFU)", {curve(steps, "mfu")}, true);
  add("Share of the matrix rate", {curve(steps, "matrix_rate_share")}, true);
  add("Learning rate", {curve(steps, "learning_rate")}, true);
  add("Norm of the gradient", {curve(steps, "gradient_norm")}, false);
  add("Norm of the gradient, by part of the model", curvesOfGroups(steps), false);
  add("Loss scale", {curve(steps, "loss_scale")}, false);
  add("Seconds of a step, rank 0",
      {curve(steps, "compute_seconds", "computing", 0), curve(steps, "wait_seconds", "waiting", 1),
       curve(steps, "communication_seconds", "communication", 2), curve(steps, "data_seconds", "data", 3)},
      true);
  for (const auto& [key, title] : std::array<std::pair<const char*, const char*>, 6>{{
           {"rank_compute_seconds", "Seconds computing, by rank"},
           {"rank_communication_seconds", "Seconds communicating and waiting in it, by rank"},
           {"rank_data_seconds", "Seconds reading data, by rank"},
           {"rank_clock_megahertz", "Clock in MHz, by rank"},
           {"rank_power_watts", "Power in W, by rank"},
           {"rank_temperature_celsius", "Temperature in degrees C, by rank"},
       }}) {
    add(title, curvesOfRanks(steps, key), std::string_view(key).ends_with("seconds"));
  }
  if (html.empty()) return html;
  const char* note = marks.empty() ? "" : "<p class=\"sub\">Dotted lines: what happened then is told below.</p>";
  return "<h2>Curves</h2>" + std::string(note) + "<div class=\"charts\">\n" + html + "</div>\n";
}

// How each rank spent its time, of all steps together, and the state of its device in the middle of them.
std::string ranks(const RunRecord& record) {
  const auto hosts = record.description.find("hosts");
  const std::vector<Series> computing = curvesOfRanks(record.steps, "rank_compute_seconds");
  Rows rows{{"rank", "host", "computing", "waiting", "communication", "data", "checkpoints", "clock", "power",
             "temperature"}};
  for (std::size_t rank = 0; rank < computing.size(); ++rank) {
    const bool hasHost = hosts != record.description.end() && hosts->is_array() && rank < hosts->size();
    rows.push_back(
        {std::to_string(rank), hasHost && (*hosts)[rank].is_string() ? (*hosts)[rank].get<std::string>() : "-"});
  }
  const auto addColumn = [&](const std::vector<Series>& curves, auto&& cellOf) {
    for (std::size_t rank = 0; rank < computing.size(); ++rank) {
      std::vector<double> values;
      if (rank < curves.size()) {
        for (const auto& [step, value] : curves[rank].points) values.push_back(value);
      }
      rows[rank + 1].push_back(values.empty() ? "-" : cellOf(std::move(values)));
    }
  };
  double all = 0;
  for (const double seconds : valuesOf(record.steps, "step_seconds")) all += seconds;
  const auto share = [all](const std::vector<double>& values) {
    double sum = 0;
    for (const double seconds : values) sum += seconds;
    return all > 0 ? percent(sum / all) : "-";
  };
  addColumn(computing, share);
  for (const char* key :
       {"rank_wait_seconds", "rank_communication_seconds", "rank_data_seconds", "rank_checkpoint_seconds"}) {
    addColumn(curvesOfRanks(record.steps, key), share);
  }
  for (const auto& [key, unit] : std::array<std::pair<const char*, const char*>, 3>{
           {{"rank_clock_megahertz", " MHz"}, {"rank_power_watts", " W"}, {"rank_temperature_celsius", " °C"}}}) {
    addColumn(curvesOfRanks(record.steps, key),
              [&](std::vector<double> values) { return page::readable(median(std::move(values))) + unit; });
  }
  return page::table("Ranks", page::withoutEmptyColumns(std::move(rows)));
}

std::string checkpoints(const std::vector<json>& steps) {
  std::size_t count = 0;
  double longest = 0, longestStep = 0;
  for (const json& step : steps) {
    const double seconds = numberOf(step, "checkpoint_seconds").value_or(0);
    if (seconds <= 0) continue;
    ++count;
    if (seconds > longest) std::tie(longest, longestStep) = std::pair(seconds, step["step"].get<double>());
  }
  if (count == 0) return {};
  return std::to_string(count) + " checkpoints were taken while it trained; the longest wait for one was " +
         base::formatDuration(longest) + ", before step " + page::readable(longestStep) + ".";
}

std::string happenings(const RunRecord& record) {
  Rows rows{{"step", "when", "what", ""}};
  std::vector<const json*> events;
  for (const json& event : record.events) {
    if (textOf(event, "event") != "sample") events.push_back(&event);
  }
  const std::size_t first = events.size() > mostEvents ? events.size() - mostEvents : 0;
  for (std::size_t i = first; i < events.size(); ++i) {
    std::string kind = textOf(*events[i], "event");
    std::ranges::replace(kind, '_', ' ');
    std::string time = textOf(*events[i], "time");
    std::ranges::replace(time, 'T', ' ');
    rows.push_back({textOf(*events[i], "step"), time, kind, textOf(*events[i], "text")});
  }
  std::string html = page::table("What happened", rows);
  if (first > 0) html += "<p class=\"sub\">Before that " + std::to_string(first) + " more, in events.jsonl.</p>\n";
  if (const std::string text = checkpoints(record.steps); !text.empty()) html += "<p class=\"sub\">" + text + "</p>\n";
  return html;
}

// The newest first; of a step that was taken twice, what was written the second time.
std::string samples(const RunRecord& record) {
  std::map<std::int64_t, std::map<std::string, std::string>, std::greater<>> byStep;
  for (const json& event : record.events) {
    if (textOf(event, "event") != "sample") continue;
    byStep[event["step"].get<std::int64_t>()][textOf(event, "prompt")] = textOf(event, "text");
  }
  if (byStep.empty()) return {};
  std::string html = "<h2>What it writes</h2><div class=\"card\">";
  std::size_t shown = 0;
  for (const auto& [step, texts] : byStep) {
    if (shown++ == mostSampleSteps) break;
    html += "<p class=\"sub\">after step " + std::to_string(step) + "</p>";
    for (const auto& [prompt, text] : texts) {
      html += "<blockquote><b>" + page::escaped(prompt) + "</b>" + page::escaped(text) + "</blockquote>";
    }
  }
  return html + "</div>\n";
}

std::string configuration(const RunRecord& record) {
  Rows rows{{"", ""}};
  for (const auto& [name, value] : record.description.items()) {
    if (name != "options") rows.push_back({name, value.is_string() ? value.get<std::string>() : base::jsonText(value)});
  }
  for (const auto& [name, value] : record.options) rows.push_back({"--" + name, value});
  return page::table("How it was made", rows);
}

}  // namespace

std::string reportHtml(const RunRecord& record) {
  const std::string output = record.options.contains("output") ? record.options.at("output") : std::string();
  std::string html = page::begin("Tandem run" + (output.empty() ? std::string() : " " + output));
  html += "<p class=\"sub\">" + std::to_string(record.steps.size()) + " steps recorded</p>";
  if (!record.steps.empty()) html += tiles(record);
  html += charts(record) + ranks(record) + happenings(record) + samples(record);
  if (record.description.is_object()) html += configuration(record);
  return html + page::end();
}

}  // namespace tandem::telemetry
