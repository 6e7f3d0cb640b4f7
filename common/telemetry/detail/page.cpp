#include "common/telemetry/detail/page.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "common/telemetry/median.h"

namespace tandem::telemetry::page {
namespace {

constexpr std::size_t mostPoints = 400;  // of a curve: more cannot be seen
constexpr double width = 640, height = 220, left = 84, right = 12, bottom = 26, top = 10;
constexpr std::size_t hues = 8;
constexpr std::ptrdiff_t leastToSmooth = 160;  // points
constexpr int mostTicks = 12;                  // of an abscissa

std::string written(double value, const char* format) {
  char text[48];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

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

// An axis from round number to round number: linear, or by powers of ten where values differ by a hundred and more.
struct Axis {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  double step = 1;
  bool logarithmic = false;

  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool isEmpty() const { return high < low; }
  // Distances of ticks: 1, 2 or 5 times a power of ten, about `count` of them.
  static double distance(double range, int count) {
    const double rough = range / count, power = std::pow(10.0, std::floor(std::log10(rough)));
    const double digit = rough / power;
    return power * (digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10);
  }
  void roundOff(bool fromZero) {
    logarithmic = !fromZero && low > 0 && high / low > 100;
    if (logarithmic) {
      low = std::floor(std::log10(low));
      high = std::ceil(std::log10(high));
      step = std::max(1.0, std::ceil((high - low) / 4));
      return;
    }
    if (fromZero) low = std::min(low, 0.0);
    if (high - low <= 1e-9 * std::max(std::abs(high), std::abs(low))) {
      const double margin = high == 0 ? 1 : 0.1 * std::abs(high);
      low -= fromZero && low == 0 ? 0 : margin;
      high += margin;
    }
    step = distance(high - low, 4);
    low = std::floor(low / step) * step;
    high = std::ceil(high / step) * step;
  }
  double part(double value) const { return ((logarithmic ? std::log10(value) : value) - low) / (high - low); }
  std::vector<double> ticks() const {
    std::vector<double> values;
    for (int i = 0; low + i * step <= high + 1e-6 * step; ++i) {
      // No 1e-17 where there is to be 0.
      const double place = std::abs(low + i * step) < 1e-6 * step ? 0 : low + i * step;
      values.push_back(logarithmic ? std::pow(10.0, place) : place);
    }
    return values;
  }
};

struct Frame {
  Axis x, y;
  double atX(double value) const { return left + x.part(value) * (width - left - right); }
  double atY(double value) const { return top + (1 - y.part(value)) * (height - top - bottom); }
};

Frame frameOf(const Chart& chart) {
  Frame frame;
  for (const Series& series : chart.series) {
    for (const auto& [x, y] : series.points) {
      frame.x.add(x);
      frame.y.add(y);
    }
  }
  if (frame.x.isEmpty()) return frame;
  frame.y.roundOff(chart.fromZero);
  // The abscissa keeps its ends: round numbers in between.
  if (frame.x.high <= frame.x.low) frame.x.high = frame.x.low + 1;
  frame.x.step = Axis::distance(frame.x.high - frame.x.low, 5);
  return frame;
}

// Ticks are told as short as they differ: 250k, 1.5M.
std::string tick(double value) {
  const double size = std::abs(value);
  for (const auto& [unit, name] : {std::pair{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}}) {
    if (size >= unit * (unit == 1e3 ? 10 : 1)) return written(value / unit, "%.4g") + name;
  }
  return written(value, "%.4g");
}

std::string line(const char* kind, double x1, double y1, double x2, double y2) {
  return std::string("<line class=\"") + kind + "\" x1=\"" + written(x1, "%.1f") + "\" y1=\"" + written(y1, "%.1f") +
         "\" x2=\"" + written(x2, "%.1f") + "\" y2=\"" + written(y2, "%.1f") + "\"/>";
}

std::string label(double x, double y, const char* anchor, const std::string& text) {
  return "<text x=\"" + written(x, "%.1f") + "\" y=\"" + written(y, "%.1f") + "\" text-anchor=\"" + anchor + "\">" +
         escaped(text) + "</text>";
}

std::string axes(const Frame& frame) {
  std::string out;
  for (const double value : frame.y.ticks()) {
    out += line("grid", left, frame.atY(value), width - right, frame.atY(value));
    out += label(left - 8, frame.atY(value) + 4, "end", tick(value));
  }
  const Axis& x = frame.x;
  for (int i = 0; i < mostTicks; ++i) {  // of numbers so large that a step does not change them there is no end
    const double value = (std::ceil(x.low / x.step) + i) * x.step;
    if (!(value <= x.high + 1e-6 * x.step)) break;
    const bool atTheEdge = frame.atX(value) > width - right - 20;
    out += label(frame.atX(value), height - 6, atTheEdge ? "end" : "middle", tick(value));
  }
  return out;
}

// The median of each point's neighbourhood, a fortieth of the curve: what scatters about it is shown behind it.
Series smoothed(const Series& series) {
  Series smooth = series;
  const auto count = std::ssize(series.points);
  const std::ptrdiff_t reach = count / 80;
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    const std::ptrdiff_t near = std::min({reach, i, count - 1 - i});
    std::vector<double> values;
    for (std::ptrdiff_t j = i - near; j <= i + near; ++j) {
      values.push_back(series.points[static_cast<std::size_t>(j)].second);
    }
    smooth.points[static_cast<std::size_t>(i)].second = median(std::move(values));
  }
  return smooth;
}

std::string polyline(const Series& series, const Frame& frame, bool faint = false) {
  std::string out = "<polyline class=\"c" + std::to_string(series.hue % hues) + (series.dashed ? " dashed" : "") +
                    (faint ? " faint" : "") + "\" points=\"";
  for (const auto& [x, y] : series.points) {
    out += written(frame.atX(x), "%.1f") + "," + written(frame.atY(y), "%.1f") + " ";
  }
  out += "\"/>";
  if (series.points.size() == 1) {  // a line of one point is not to be seen
    const auto& [x, y] = series.points.front();
    out += "<circle class=\"c" + std::to_string(series.hue % hues) + "\" cx=\"" + written(frame.atX(x), "%.1f") +
           "\" cy=\"" + written(frame.atY(y), "%.1f") + "\" r=\"3\"/>";
  }
  return out;
}

std::string legend(const std::vector<Series>& series) {
  std::string out = "<p class=\"legend\">";
  for (const Series& one : series) {
    out += "<span><i class=\"c" + std::to_string(one.hue % hues) + (one.dashed ? " dashed" : "") + "\"></i>" +
           escaped(one.name) + "</span> ";
  }
  return out + "</p>";
}

}  // namespace

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

std::string readable(double value, int digits) {
  if (!std::isfinite(value)) return "none";
  if (std::abs(value) < 1e4 || std::abs(value) >= 1e15) {
    char text[48];
    std::snprintf(text, sizeof text, "%.*g", digits, value);
    return text;
  }
  std::string text = written(std::abs(value), "%.0f");
  for (auto at = static_cast<std::ptrdiff_t>(text.size()) - 3; at > 0; at -= 3) {
    text.insert(static_cast<std::size_t>(at), ",");
  }
  return (value < 0 ? "-" : "") + text;
}

std::string begin(const std::string& title) {
  // Colours that can be told apart with red-green blindness too (Okabe and Ito), somewhat darker or lighter by theme.
  return "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
         "content=\"width=device-width,initial-scale=1\"><title>" +
         escaped(title) +
         "</title><link rel=\"icon\" href=\"data:,\"><style>"
         ":root{color-scheme:light dark;--ink:#1d2125;--dim:#5b6470;--paper:#f6f7f9;--card:#fff;--line:#e0e3e8;"
         "--mark:#c2410c;--c0:#0067b1;--c1:#d55e00;--c2:#008060;--c3:#a8478a;--c4:#8a6d00;--c5:#3a8fbf;--c6:#6b4fbb;"
         "--c7:#555}"
         "@media(prefers-color-scheme:dark){:root{--ink:#e4e7eb;--dim:#9aa4b1;--paper:#14171a;--card:#1d2125;"
         "--line:#333a42;--mark:#fb923c;--c0:#58a6ff;--c1:#ff9248;--c2:#3fc79a;--c3:#e08cc4;--c4:#e0c040;--c5:#8fd0f0;"
         "--c6:#b19cff;--c7:#bbb}}"
         "*{box-sizing:border-box}"
         "body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:76rem;"
         "margin:auto;padding:1rem}"
         "h1{font-size:1.5rem;margin:.2rem 0}h2{font-size:1.1rem;margin:1.6rem 0 .5rem}"
         ".sub{color:var(--dim);margin:.1rem 0 1rem}"
         ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(8.5rem,1fr));gap:.6rem;margin:0 0 1rem}"
         ".tiles div,figure,.card{background:var(--card);border:1px solid var(--line);border-radius:8px;"
         "padding:.6rem .8rem}"
         ".tiles b{display:block;font-size:1.25rem;font-variant-numeric:tabular-nums}"
         ".tiles span{color:var(--dim);font-size:.82rem}"
         ".charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,30rem),1fr));gap:.8rem}"
         "figure{margin:0}figcaption{font-weight:600}svg{width:100%;height:auto;display:block}"
         "polyline{fill:none;stroke-width:1.8;stroke-linejoin:round}.dashed{stroke-dasharray:6 4}"
         "text{fill:var(--dim);font-size:13px}.grid{stroke:var(--line)}"
         ".faint{stroke-width:1;opacity:.35}circle{fill:var(--hue)}figcaption small{color:var(--dim);font-weight:400}"
         ".mark{stroke:var(--mark);stroke-dasharray:2 3;opacity:.8}"
         ".legend{margin:.2rem 0 0;font-size:.85rem;display:flex;flex-wrap:wrap;gap:.1rem 1rem}"
         ".legend i{display:inline-block;width:1.2em;border-top:3px solid "
         "var(--hue);vertical-align:middle;margin-right:.4em}"
         ".legend i.dashed{border-top-style:dashed}"
         ".c0{stroke:var(--c0);--hue:var(--c0)}.c1{stroke:var(--c1);--hue:var(--c1)}"
         ".c2{stroke:var(--c2);--hue:var(--c2)}.c3{stroke:var(--c3);--hue:var(--c3)}"
         ".c4{stroke:var(--c4);--hue:var(--c4)}.c5{stroke:var(--c5);--hue:var(--c5)}"
         ".c6{stroke:var(--c6);--hue:var(--c6)}.c7{stroke:var(--c7);--hue:var(--c7)}"
         ".scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}"
         "th{text-align:left;color:var(--dim);font-weight:600}"
         "th,td{vertical-align:top;padding:.25rem .9rem .25rem 0;overflow-wrap:anywhere}"
         "td:not(:last-child),th{white-space:nowrap}td:last-child{min-width:12rem}"
         "tr+tr{border-top:1px solid var(--line)}"
         "blockquote{margin:.4rem 0 0;white-space:pre-wrap;overflow-wrap:anywhere}blockquote b{color:var(--c0)}"
         "@media(max-width:30rem){body{padding:.6rem}text{font-size:21px}th,td{font-size:.9rem}}"
         "</style></head><body>\n<h1>" +
         escaped(title) + "</h1>\n";
}

std::string end() { return "</body></html>\n"; }

std::string drawn(Chart chart) {
  std::erase_if(chart.series, [](const Series& series) { return series.points.empty(); });
  if (chart.series.empty()) return {};
  std::ranges::for_each(chart.series, thin);
  const Frame frame = frameOf(chart);
  std::string out = "<figure><figcaption>" + escaped(chart.title) + " <small>by " + escaped(chart.abscissa) +
                    "</small></figcaption><svg viewBox=\"0 0 640 220\" " + "role=\"img\" aria-label=\"" +
                    escaped(chart.title) + "\">" + axes(frame);
  for (const double mark : chart.marks) {
    if (mark < frame.x.low || mark > frame.x.high) continue;
    out += line("mark", frame.atX(mark), top, frame.atX(mark), height - bottom);
  }
  for (const Series& series : chart.series) {
    const bool scatters = std::ssize(series.points) >= leastToSmooth;
    if (scatters) out += polyline(series, frame, true);
    out += polyline(scatters ? smoothed(series) : series, frame);
  }
  return out + "</svg>" + (chart.series.size() > 1 ? legend(chart.series) : std::string()) + "</figure>\n";
}

std::string tiles(const std::vector<std::pair<std::string, std::string>>& namesAndValues) {
  std::string out = "<div class=\"tiles\">";
  for (const auto& [name, value] : namesAndValues) {
    out += "<div><b>" + escaped(value) + "</b><span>" + escaped(name) + "</span></div>";
  }
  return out + "</div>\n";
}

std::vector<std::vector<std::string>> withoutEmptyColumns(std::vector<std::vector<std::string>> rows) {
  for (std::size_t column = rows[0].size(); column-- > 0;) {
    const bool isEmpty = std::all_of(rows.begin() + 1, rows.end(), [&](const auto& row) { return row[column] == "-"; });
    if (!isEmpty) continue;
    for (auto& row : rows) row.erase(row.begin() + static_cast<std::ptrdiff_t>(column));
  }
  return rows;
}

std::string table(const std::string& title, const std::vector<std::vector<std::string>>& rows) {
  if (rows.size() < 2) return {};
  std::string out = "<h2>" + escaped(title) + "</h2><div class=\"card scroll\"><table>";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::string cell = i == 0 ? "th" : "td";
    out += "<tr>";
    for (const std::string& text : rows[i]) out += "<" + cell + ">" + escaped(text) + "</" + cell + ">";
    out += "</tr>";
  }
  return out + "</table></div>\n";
}

}  // namespace tandem::telemetry::page
