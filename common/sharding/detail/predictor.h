#pragma once
// Memory and time of one plan, by formulas over the counts of a model's program.

#include <array>
#include <optional>

#include "common/sharding/planner.h"
#include "common/sharding/step_counts.h"

namespace tandem::sharding::detail {

class Predictor {
 public:
  explicit Predictor(const PlanRequest& request) : request_(request) {}

  Plan predict(const Grid& grid, graph::Recompute recompute, std::int64_t microBatch);

 private:
  const PlanRequest& request_;
  std::array<std::optional<StepCounts>, 3> counts_;  // by policy, made when asked for
};

}  // namespace tandem::sharding::detail
