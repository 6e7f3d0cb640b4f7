#pragma once
// Learning-rate schedules: a warm-up from zero, then a shape down to a last fraction of the peak.

#include <cstdint>
#include <string>

namespace tandem::optim {

enum class ScheduleKind {
  constant,
  linear,            // straight down from the end of the warm-up to the last step
  cosine,            // half a cosine down
  warmupStableDecay  // constant, then straight down over the last decayFraction of the steps
};

// "constant", "linear", "cosine", "wsd"; throws Error of kind usage otherwise.
ScheduleKind parseSchedule(const std::string& text);

struct Schedule {
  ScheduleKind kind = ScheduleKind::cosine;
  double peak = 3e-4;
  std::int64_t warmupSteps = 0;
  std::int64_t steps = 1;      // of the whole run
  double lastFraction = 0.1;   // of the peak, reached at the last step
  double decayFraction = 0.2;  // of the steps; warmupStableDecay only

  // The rate of a step counted from 1.
  double rate(std::int64_t step) const;
};

}  // namespace tandem::optim
