#include "common/sharding/planner.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>

#include "common/base/error.h"
#include "common/base/units.h"
#include "common/sharding/detail/predictor.h"

namespace tandem::sharding {
namespace {

using base::Error;
using base::ErrorKind;
using graph::Recompute;

constexpr std::size_t bestShown = 5;
constexpr double equallyFast = 1.01;

struct Cause {
  const char* reason;
  double PredictedTime::*seconds;
};
constexpr Cause causes[] = {{"compute longer", &PredictedTime::compute},
                            {"update longer", &PredictedTime::update},
                            {"wait for the pipeline to fill and drain", &PredictedTime::bubble},
                            {"exchange more between tensor ranks", &PredictedTime::tensor},
                            {"exchange more between context ranks", &PredictedTime::context},
                            {"exchange more between pipeline stages", &PredictedTime::pipeline},
                            {"exchange more between data ranks", &PredictedTime::data}};

// What a plan spends most on beyond what another does.
const Cause& causeOf(const Plan& slower, const Plan& faster) {
  return *std::ranges::max_element(
      causes, {}, [&](const Cause& cause) { return slower.time.*cause.seconds - faster.time.*cause.seconds; });
}

// A smaller one is simpler: fewer ranks split one model, then what ZeRO stage 1 gives for nothing, then less computed
// twice.
auto complexity(const Plan& plan) {
  constexpr std::array zeroOrder = {1, 0, 2, 3};
  const Grid& grid = plan.grid;
  return std::tuple(grid.tensor * grid.pipeline * grid.context, zeroOrder[static_cast<std::size_t>(grid.zero)],
                    plan.recompute, plan.time.total());
}

std::string shortText(const Plan& plan) {
  return plan.grid.text() + ", recompute " + recomputeText(plan.recompute) + ", micro batch " +
         std::to_string(plan.microBatch);
}

std::vector<std::int64_t> microBatchesOf(const PlanRequest& request, std::int64_t rows) {
  std::vector<std::int64_t> result;
  for (std::int64_t size = 1; size <= rows; ++size) {
    if (rows % size == 0 && (!request.microBatch || *request.microBatch == size)) result.push_back(size);
  }
  return result;
}

std::vector<Recompute> policiesOf(const PlanRequest& request) {
  if (request.recompute) return {*request.recompute};
  return {Recompute::nothing, Recompute::selective, Recompute::full};
}

// All grids of the request, with the ZeRO stages that make a difference.
std::vector<Grid> gridsOf(const PlanRequest& request) {
  if (request.grid) return {*request.grid};
  std::vector<Grid> grids;
  for (Grid grid : fittingGrids(request.cluster.devices(), request.configuration, request.sequenceLength)) {
    for (grid.zero = 0; grid.zero <= 3; ++grid.zero) {
      if (grid.replicas() > 1 || grid.zero == 1) grids.push_back(grid);
    }
  }
  return grids;
}

// Weighs all plans of a request.
class Search {
 public:
  Search(const PlanRequest& request, detail::Predictor& predictor) : request_(request), predictor_(predictor) {
    predictor_.planFor(request);
  }

  void run() {
    const std::int64_t rows = request_.batchTokens / request_.sequenceLength;
    for (const Grid& grid : gridsOf(request_)) {
      if (const std::string why = request_.whyRefused ? request_.whyRefused(grid) : ""; !why.empty()) {
        note("cannot be run", grid.text() + ": " + why);
        continue;
      }
      const std::vector<std::int64_t> sizes =
          rows % grid.data == 0 ? microBatchesOf(request_, rows / grid.data) : std::vector<std::int64_t>{};
      if (sizes.empty()) {
        note("do not divide the rows of a step", grid.text() + " with " + std::to_string(rows) + " rows");
        continue;
      }
      for (const Recompute policy : policiesOf(request_)) {
        for (const std::int64_t size : sizes) weigh(predictor_.predict(grid, policy, size));
      }
    }
  }

  // The fastest first, the simplest of the fastest in front of all.
  Planning finish() {
    std::ranges::stable_sort(fitting_, {}, [](const Plan& plan) { return plan.time.total(); });
    const double fast = fitting_.front().time.total() * equallyFast;
    auto taken = fitting_.begin();
    for (auto plan = fitting_.begin(); plan != fitting_.end() && plan->time.total() <= fast; ++plan) {
      if (complexity(*plan) < complexity(*taken)) taken = plan;
    }
    std::rotate(fitting_.begin(), taken, taken + 1);
    for (const Plan& plan : fitting_) {
      const bool isNew =
          std::ranges::none_of(planning_.best, [&](const Plan& other) { return other.grid == plan.grid; });
      if (isNew && planning_.best.size() < bestShown)
        planning_.best.push_back(plan);
      else if (&plan != &fitting_.front())
        noteSlower(plan, fitting_.front());
    }
    return std::move(planning_);
  }

  bool found() const { return !fitting_.empty(); }
  // The plan that needs the least memory of those that do not fit; none when grids were refused alone.
  const std::optional<Plan>& smallest() const { return smallest_; }
  const std::map<std::string, Losers>& losers() const { return planning_.losers; }

 private:
  void note(const std::string& reason, const std::string& example) {
    Losers& losers = planning_.losers[reason];
    if (losers.count++ == 0) losers.closest = example;
  }

  void weigh(Plan plan) {
    ++planning_.weighed;
    if (plan.memory.total() <= request_.cluster.usableBytes()) {
      fitting_.push_back(std::move(plan));
      return;
    }
    Losers& losers = planning_.losers["need more memory than a device has"];
    ++losers.count;
    if (smallest_ && smallest_->memory.total() <= plan.memory.total()) return;
    losers.closest = shortText(plan) + " needs " + base::formatBytes(plan.memory.total());
    smallest_ = std::move(plan);
  }

  void noteSlower(const Plan& plan, const Plan& taken) {
    const std::int64_t percent = std::lround(100 * (plan.time.total() / taken.time.total() - 1));
    note(causeOf(plan, taken).reason,
         shortText(plan) + " takes " + (percent < 1 ? "as long" : std::to_string(percent) + " % longer"));
  }

  const PlanRequest& request_;
  detail::Predictor& predictor_;
  Planning planning_;
  std::vector<Plan> fitting_;
  std::optional<Plan> smallest_;
};

// "16 devices of this kind", or nothing when that is no way out.
std::string enoughDevices(const PlanRequest& request, detail::Predictor& predictor) {
  if (request.grid) return "";
  PlanRequest larger = request;
  constexpr int most = 16384;
  while (larger.cluster.devices() < most) {
    int& doubled = request.cluster.nodes > 1 ? larger.cluster.nodes : larger.cluster.devicesPerNode;
    doubled *= 2;
    Search search(larger, predictor);
    search.run();
    if (search.found()) return std::to_string(larger.cluster.devices()) + " devices of this kind";
  }
  return "";
}

[[noreturn]] void refuse(const PlanRequest& request, const Search& search, detail::Predictor& predictor) {
  const Cluster& cluster = request.cluster;
  std::string message =
      "no plan for this model on the " + std::to_string(cluster.devices()) + " devices of '" + cluster.name + "'";
  if (!search.smallest()) {
    for (const auto& [reason, losers] : search.losers()) {
      message += "; " + std::to_string(losers.count) + " grids " + reason + " (" + losers.closest + ")";
    }
    throw Error(ErrorKind::usage, message + "; change --batch-tokens, --sequence-length or --micro-batch");
  }
  const PredictedMemory& memory = search.smallest()->memory;
  message += " fits into memory: the least that a rank needs is " + base::formatBytes(memory.total()) + " (" +
             shortText(*search.smallest()) + ": weights " + base::formatBytes(memory.weights) + ", gradients " +
             base::formatBytes(memory.gradients) + ", optimizer states " + base::formatBytes(memory.optimizerStates) +
             (memory.buckets > 0 ? ", whole layers " + base::formatBytes(memory.buckets) : "") + ", activations " +
             base::formatBytes(memory.activations) +
             (memory.exchanges > 0 ? ", sums under way " + base::formatBytes(memory.exchanges) : "") +
             "), and a device has " + base::formatBytes(cluster.usableBytes()) + "; it would fit with " +
             base::formatBytes(memory.total()) + " a device";
  const std::string devices = enoughDevices(request, predictor);
  throw Error(ErrorKind::usage, message + (devices.empty() ? "" : ", or on " + devices));
}

void check(const PlanRequest& request) {
  if (request.batchTokens < request.sequenceLength || request.batchTokens % request.sequenceLength != 0) {
    throw Error(ErrorKind::usage, "--batch-tokens " + std::to_string(request.batchTokens) +
                                      " is no multiple of --sequence-length " + std::to_string(request.sequenceLength));
  }
  if (!request.grid) return;
  demandFitting(*request.grid, request.configuration, request.sequenceLength);
  if (request.grid->virtualStages > 1) {
    throw Error(ErrorKind::usage,
                "--shard " + request.grid->text() +
                    ": the planner does not predict virtual stages; leave vp out of what it plans, or "
                    "--cluster out to see what a rank holds");
  }
}

}  // namespace

Planning planTraining(const PlanRequest& request) {
  check(request);
  detail::Predictor predictor(request);
  Search search(request, predictor);
  search.run();
  if (!search.found()) refuse(request, search, predictor);
  return search.finish();
}

std::string recomputeText(Recompute recompute) {
  switch (recompute) {
    case Recompute::nothing:
      return "none";
    case Recompute::selective:
      return "selective";
    case Recompute::full:
      return "full";
  }
  TANDEM_ASSERT(false, "a recomputation without a name");
}

}  // namespace tandem::sharding
