#include "common/base/units.h"

#include <array>
#include <charconv>
#include <cstdio>
#include <span>

#include "common/base/error.h"

namespace tandem::base {
namespace {

std::string scaled(double value, double step, std::span<const char* const> names) {
  std::size_t unit = 0;
  while (value >= step && unit + 1 < names.size()) {
    value /= step;
    ++unit;
  }
  char text[48];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", value, names[unit]);
  std::string result = text;
  while (result.back() == ' ') result.pop_back();
  return result;
}

}  // namespace

std::chrono::seconds parseDuration(const std::string& text) {
  std::int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, failure] = std::from_chars(text.data(), end, number);
  const std::string unit(rest, end);
  const std::int64_t scale = unit.empty() || unit == "s" ? 1
                             : unit == "m"               ? 60
                             : unit == "h"               ? 3600
                             : unit == "d"               ? 86400
                                                         : 0;
  if (failure != std::errc() || scale == 0 || number < 0 || number > 1'000'000'000) {
    throw Error(ErrorKind::usage,
                "'" + text + "' is no duration; write a number and s, m, h or d, like 90s, 30m or 2h");
  }
  return std::chrono::seconds(number * scale);
}

std::string formatDuration(double seconds) {
  char text[48];
  const auto whole = static_cast<std::int64_t>(seconds + 0.5);
  if (seconds < 60) {
    std::snprintf(text, sizeof text, "%.1f s", seconds);
  } else if (whole < 3600) {
    std::snprintf(text, sizeof text, "%dm %02ds", static_cast<int>(whole / 60), static_cast<int>(whole % 60));
  } else {
    std::snprintf(text, sizeof text, "%lldh %02dm", static_cast<long long>(whole / 3600),
                  static_cast<int>(whole % 3600 / 60));
  }
  return text;
}

std::string formatBytes(std::int64_t bytes) {
  static constexpr std::array names = {"B", "KiB", "MiB", "GiB", "TiB"};
  return scaled(static_cast<double>(bytes), 1024, names);
}

std::string formatCount(double count) {
  static constexpr std::array names = {"", "K", "M", "B", "T"};
  return scaled(count, 1000, names);
}

std::string formatFlops(double operations) {
  static constexpr std::array names = {"FLOP", "KFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"};
  return scaled(operations, 1000, names);
}

}  // namespace tandem::base
