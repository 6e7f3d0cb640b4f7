#include "apps/shared/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "common/base/log.h"
#include "common/base/units.h"

namespace tandem::app {
namespace {

std::string amount(std::int64_t value, const std::string& unit) {
  if (unit == "B") return base::formatBytes(value);
  return base::formatCount(static_cast<double>(value)) + " " + unit;
}

std::string barOf(double share) {
  constexpr std::size_t width = 24;
  std::string bar(width, '.');
  std::fill_n(bar.begin(), static_cast<std::size_t>(share * static_cast<double>(width)), '#');
  return '[' + bar + "] ";
}

}  // namespace

Progress::Progress(std::string what, std::int64_t total, std::string unit, Style style)
    : what_(std::move(what)),
      total_(total),
      unit_(std::move(unit)),
      bar_(style == Style::bar || (style == Style::detect && isatty(STDERR_FILENO) == 1)) {}

Progress::~Progress() {
  if (bar_ && drawn_) std::fputc('\n', stderr);
}

void Progress::update(std::int64_t done, const std::string& note) {
  if (!base::logsOnThisRank()) return;
  done_ = done;
  const Clock::time_point now = Clock::now();
  const auto pause = bar_ ? std::chrono::milliseconds(100) : std::chrono::seconds(10);
  if (note_ != note) note_ = note;
  if (now - lastDraw_ >= pause) draw(now);
}

void Progress::finish() {
  if (base::logsOnThisRank()) draw(Clock::now());
}

void Progress::draw(Clock::time_point now) {
  lastDraw_ = now;
  drawn_ = true;
  const double seconds = std::max(1e-3, std::chrono::duration<double>(now - start_).count());
  const double rate = static_cast<double>(done_) / seconds;
  std::string text = amount(done_, unit_);
  if (total_ > 0) {
    const double share = std::clamp(static_cast<double>(done_) / static_cast<double>(total_), 0.0, 1.0);
    text += " of " + amount(total_, unit_) + " (" + std::to_string(static_cast<int>(share * 100)) + " %)";
    if (bar_) text.insert(0, barOf(share));
  }
  text += ", " + amount(static_cast<std::int64_t>(rate), unit_) + "/s";
  const std::int64_t left = total_ - done_;
  if (left > 0 && rate > 0) text += ", " + base::formatDuration(static_cast<double>(left) / rate) + " left";
  if (!note_.empty()) text += ", " + note_;
  if (bar_) {
    std::fprintf(stderr, "\r%s: %s\x1b[K", what_.c_str(), text.c_str());
    std::fflush(stderr);
  } else {
    TANDEM_LOG(info) << what_ << ": " << text;
  }
}

}  // namespace tandem::app
