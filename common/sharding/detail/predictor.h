#pragma once
// Memory and time of one plan, by formulas over the counts of a model's program.

#include <array>
#include <map>
#include <optional>
#include <utility>

#include "common/sharding/planner.h"
#include "common/sharding/step_counts.h"

namespace tandem::sharding::detail {

class Predictor {
 public:
  explicit Predictor(const PlanRequest& request) : request_(&request) {}

  // From now on for another cluster or batch; the model, its rows and their type must be the same.
  void planFor(const PlanRequest& request) { request_ = &request; }

  Plan predict(const Grid& grid, graph::Recompute recompute, std::int64_t microBatch);

 private:
  const RankCounts& rankCountsOf(graph::Recompute recompute, int tensorRanks);

  const PlanRequest* request_;

  // Made when asked for: by policy, and by policy and tensor ranks.
  std::array<std::optional<StepCounts>, 3> counts_;
  std::map<std::pair<graph::Recompute, int>, RankCounts> rankCounts_;
};

}  // namespace tandem::sharding::detail
