#include "common/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "common/base/error.h"

namespace tandem::optim {

ScheduleKind parseSchedule(const std::string& text) {
  if (text == "constant") return ScheduleKind::constant;
  if (text == "linear") return ScheduleKind::linear;
  if (text == "cosine") return ScheduleKind::cosine;
  if (text == "wsd") return ScheduleKind::warmupStableDecay;
  throw base::Error(base::ErrorKind::usage, "schedule '" + text + "' is none of constant, linear, cosine, wsd");
}

double Schedule::rate(std::int64_t step) const {
  if (step <= warmupSteps) return peak * static_cast<double>(step) / static_cast<double>(warmupSteps);
  // How much of the way down is done, from 0 to 1.
  auto part = [&](double begin) {
    const double length = static_cast<double>(steps) - begin;
    return length <= 0 ? 1.0 : std::clamp((static_cast<double>(step) - begin) / length, 0.0, 1.0);
  };
  const double warm = static_cast<double>(warmupSteps);
  switch (kind) {
    case ScheduleKind::constant:
      return peak;
    case ScheduleKind::linear:
      return peak * (1 - (1 - lastFraction) * part(warm));
    case ScheduleKind::cosine:
      return peak * (lastFraction + (1 - lastFraction) * 0.5 * (1 + std::cos(std::numbers::pi * part(warm))));
    case ScheduleKind::warmupStableDecay: {
      const double begin = std::max(warm, static_cast<double>(steps) * (1 - decayFraction));
      return peak * (1 - (1 - lastFraction) * part(begin));
    }
  }
  return peak;
}

}  // namespace tandem::optim
