#pragma once
// Memory and time of one plan, by formulas over the counts of the programs that its ranks run.

#include <map>
#include <vector>

#include "common/sharding/planner.h"
#include "common/sharding/stage_counts.h"

namespace tandem::sharding::detail {

class Predictor {
 public:
  explicit Predictor(const PlanRequest& request)
      : request_(&request), programs_(request.configuration, request.sequenceLength, request.storage) {}

  // From now on for another cluster or batch; the model, its rows and their type must be the same.
  void planFor(const PlanRequest& request) { request_ = &request; }

  Plan predict(const Grid& grid, graph::Recompute recompute, std::int64_t microBatch);

  const StageCounts& countsOf(const StageShape& shape);

 private:
  const std::vector<std::int64_t>& layersOfStages(int stages);

  const PlanRequest* request_;

  // Made when asked for.
  StagePrograms programs_;
  std::map<StageShape, StageCounts> counts_;
  std::map<int, std::vector<std::int64_t>> layers_;  // by number of stages
};

}  // namespace tandem::sharding::detail
