#include "common/telemetry/report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

namespace tandem::telemetry {
namespace {

using nlohmann::json;

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // step and value
};
using Chart = std::vector<Series>;

constexpr std::size_t mostPoints = 600;  // of a curve: more cannot be seen
constexpr std::size_t mostCurves = 16;   // of ranks
constexpr double width = 640, height = 180, left = 76, bottom = 22, top = 8;

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string written(double value, const char* format = "%.3g") {
  char text[48];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::vector<json> records(std::string_view metrics) {
  std::vector<json> found;
  while (!metrics.empty()) {
    const std::string_view line = metrics.substr(0, metrics.find('\n'));
    metrics.remove_prefix(std::min(line.size() + 1, metrics.size()));
    json record = json::parse(line.begin(), line.end(), nullptr, false);
    if (record.is_object() && record.contains("step") && record["step"].is_number()) found.push_back(std::move(record));
  }
  return found;
}

// Neighbours are averaged where there are more points than can be seen.
void thin(Series& series) {
  const std::size_t group = (series.points.size() + mostPoints - 1) / mostPoints;
  if (group <= 1) return;
  std::vector<std::pair<double, double>> thinned;
  for (std::size_t begin = 0; begin < series.points.size(); begin += group) {
    const std::size_t end = std::min(begin + group, series.points.size());
    double sum = 0;
    for (std::size_t i = begin; i < end; ++i) sum += series.points[i].second;
    thinned.emplace_back(series.points[end - 1].first, sum / static_cast<double>(end - begin));
  }
  series.points = std::move(thinned);
}

Series curve(const std::vector<json>& steps, const std::string& key, const std::string& name) {
  Series series{name, {}};
  for (const json& step : steps) {
    const auto found = step.find(key);
    if (found != step.end() && found->is_number()) series.points.emplace_back(step["step"], found->get<double>());
  }
  thin(series);
  return series;
}

// A curve a rank, of a key that holds a list.
Chart curvesOfRanks(const std::vector<json>& steps, const std::string& key) {
  Chart chart;
  for (const json& step : steps) {
    const auto values = step.find(key);
    if (values == step.end() || !values->is_array()) continue;
    for (std::size_t rank = 0; rank < std::min(values->size(), mostCurves); ++rank) {
      if (chart.size() <= rank) chart.push_back({"rank " + std::to_string(rank), {}});
      if ((*values)[rank].is_number()) chart[rank].points.emplace_back(step["step"], (*values)[rank].get<double>());
    }
  }
  std::ranges::for_each(chart, thin);
  return chart;
}

struct Bounds {
  double leftStep = std::numeric_limits<double>::infinity(), rightStep = -leftStep;
  double low = leftStep, high = -leftStep;
  void widen(const Chart& chart) {
    for (const Series& series : chart) {
      for (const auto& [step, value] : series.points) {
        leftStep = std::min(leftStep, step);
        rightStep = std::max(rightStep, step);
        low = std::min(low, value);
        high = std::max(high, value);
      }
    }
    if (high - low < 1e-9 * std::abs(high)) low -= 0.5 * std::abs(high) + 1e-12;
  }
  double x(double step) const {
    const double part = rightStep > leftStep ? (step - leftStep) / (rightStep - leftStep) : 0.5;
    return left + part * (width - left - 4);
  }
  double y(double value) const { return top + (high - value) / (high - low) * (height - top - bottom); }
};

// Curves that differ by hue, by number of place, and carry their names below.
std::string hue(std::size_t index) {
  return "hsl(" + written(static_cast<double>((index * 137 + 210) % 360)) + " 60% 50%)";
}

void addChart(const std::string& title, const Chart& chart, std::string& page) {
  Bounds bounds;
  bounds.widen(chart);
  if (bounds.rightStep < bounds.leftStep) return;  // nothing was recorded of it
  page += "<figure><figcaption>" + escaped(title) +
          "</figcaption><svg viewBox=\"0 0 640 180\" role=\"img\" aria-label=\"" + escaped(title) + "\">";
  for (const double value : {bounds.low, (bounds.low + bounds.high) / 2, bounds.high}) {
    const std::string y = written(bounds.y(value));
    page += "<line class=\"grid\" x1=\"76\" x2=\"636\" y1=\"" + y + "\" y2=\"" + y + "\"/><text x=\"70\" y=\"" + y +
            "\" text-anchor=\"end\" dy=\"4\">" + written(value) + "</text>";
  }
  page += "<text x=\"76\" y=\"176\">step " + written(bounds.leftStep, "%.0f") +
          "</text><text x=\"636\" y=\"176\" text-anchor=\"end\">" + written(bounds.rightStep, "%.0f") + "</text>";
  for (std::size_t i = 0; i < chart.size(); ++i) {
    page += "<polyline style=\"stroke:" + hue(i) + "\" points=\"";
    for (const auto& [step, value] : chart[i].points) {
      page += written(bounds.x(step), "%.1f") + "," + written(bounds.y(value), "%.1f") + " ";
    }
    page += "\"/>";
  }
  page += "</svg>";
  for (std::size_t i = 0; chart.size() > 1 && i < chart.size(); ++i) {
    page += "<span class=\"key\"><i style=\"background:" + hue(i) + "\"></i>" + escaped(chart[i].name) + "</span> ";
  }
  page += "</figure>\n";
}

void addRow(const std::string& first, const std::string& second, std::string& page) {
  page += "<tr><th>" + escaped(first) + "</th><td>" + escaped(second) + "</td></tr>";
}

void addEvents(const std::vector<json>& steps, std::string& page) {
  std::string rows;
  for (const json& step : steps) {
    const std::string number = "step " + step["step"].dump();
    if (step.contains("straggler") && step["straggler"].is_string()) addRow(number, step["straggler"], rows);
    if (step.contains("skipped") && step["skipped"] == true)
      addRow(number, "no finite loss or gradient: skipped", rows);
    const auto saving = step.find("checkpoint_seconds");
    if (saving != step.end() && saving->is_number() && saving->get<double>() > 0) {
      addRow(number, "a checkpoint held it up for " + written(*saving) + " s", rows);
    }
  }
  if (!rows.empty()) page += "<h2>What happened</h2><table>" + rows + "</table>\n";
}

void addConfiguration(std::string_view run, std::string& page) {
  const json description = json::parse(run.begin(), run.end(), nullptr, false);
  if (!description.is_object()) return;
  page += "<h2>How it was made</h2><table>";
  for (const auto& [name, value] : description.items()) {
    if (name != "options") addRow(name, value.is_string() ? value.get<std::string>() : value.dump(), page);
  }
  const json options = description.value("options", json::object());
  for (const auto& [name, value] : options.items()) {
    addRow("--" + name, value.is_string() ? value.get<std::string>() : value.dump(), page);
  }
  page += "</table>\n";
}

constexpr const char* head =
    "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
    "content=\"width=device-width,initial-scale=1\"><title>Tandem run</title><link rel=\"icon\" href=\"data:,\"><style>"
    ":root{color-scheme:light dark;--ink:#1c1c1c;--paper:#fff;--line:#ccc}"
    "@media(prefers-color-scheme:dark){:root{--ink:#e6e6e6;--paper:#161616;--line:#444}}"
    "body{font:16px/1.5 "
    "system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:70rem;margin:auto;padding:1rem}"
    "main{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,30rem),1fr));gap:1rem}"
    "figure{margin:0}figcaption{font-weight:600}svg{width:100%;height:auto}polyline{fill:none;stroke-width:1.5}"
    "text{fill:var(--ink);font-size:13px}.grid{stroke:var(--line)}.key{font-size:.85rem;white-space:nowrap}"
    ".key i{display:inline-block;width:.8em;height:.8em;margin-right:.3em}table{border-collapse:collapse;width:100%}"
    "th{text-align:left;font-weight:600;vertical-align:top;padding-right:1rem;white-space:nowrap}"
    "td{overflow-wrap:anywhere}tr{border-bottom:1px solid var(--line)}</style></head><body>\n";

}  // namespace

std::string reportHtml(std::string_view metrics, std::string_view run) {
  std::vector<json> steps, evaluations;
  for (json& record : records(metrics))
    (record.contains("evaluation") ? evaluations : steps).push_back(std::move(record));
  std::string page = head;
  page += "<h1>Tandem run</h1><p>" + std::to_string(steps.size()) + " steps recorded";
  if (!steps.empty()) page += ", the last is step " + steps.back()["step"].dump();
  page += "</p><main>\n";
  addChart("Loss", {curve(steps, "loss", "training"), curve(evaluations, "loss", "evaluation")}, page);
  addChart("Tokens per second", {curve(steps, "tokens_per_second", "")}, page);
  addChart("Share of the devices' peak (MFU)", {curve(steps, "mfu", "")}, page);
  addChart("Share of the matrix rate", {curve(steps, "matrix_rate_share", "")}, page);
  addChart("Learning rate", {curve(steps, "learning_rate", "")}, page);
  addChart("Norm of the gradient", {curve(steps, "gradient_norm", "")}, page);
  addChart("Seconds of a step, rank 0",
           {curve(steps, "compute_seconds", "computing"), curve(steps, "wait_seconds", "waiting"),
            curve(steps, "communication_seconds", "communication"), curve(steps, "data_seconds", "data")},
           page);
  for (const auto& [key, title] : std::array<std::pair<const char*, const char*>, 6>{{
           {"rank_compute_seconds", "Seconds computing, by rank"},
           {"rank_communication_seconds", "Seconds communicating and waiting in it, by rank"},
           {"rank_data_seconds", "Seconds reading data, by rank"},
           {"rank_clock_megahertz", "Clock in MHz, by rank"},
           {"rank_power_watts", "Power in W, by rank"},
           {"rank_temperature_celsius", "Temperature in degrees C, by rank"},
       }}) {
    addChart(title, curvesOfRanks(steps, key), page);
  }
  page += "</main>\n";
  addEvents(steps, page);
  addConfiguration(run, page);
  return page + "</body></html>\n";
}

}  // namespace tandem::telemetry
