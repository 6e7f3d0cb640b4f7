// The planner beside what really happens: trains a few steps on every grid of the ranks that there are, and sets what
// each rank took and how long a step lasted beside what was predicted.
//
//   mpirun ... planner_bench MODEL.json ROWS SEQUENCE_LENGTH [STEPS [TURNS]]
//
// ROWS are those of a step. Each grid has the recomputation and the micro batch that the planner would take with it.
// Memory is what a rank's resident set grows by until its peak, of the fullest rank; time the best of all steps, after
// one that is not counted, of TURNS turns through all grids.

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "common/base/units.h"
#include "common/comm/session.h"
#include "common/sharding/planner.h"
#include "common/telemetry/metrics.h"
#include "common/train/measured_cluster.h"
#include "common/train/model_state.h"
#include "common/train/training_step.h"

namespace {

using namespace tandem;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t gibi = std::int64_t{1} << 30;

struct Work {
  std::string model;
  std::int64_t rows = 0, sequenceLength = 0;
  int steps = 3, turns = 2;
};

struct Measured {
  double seconds = INFINITY;
  double bytes = 0;
};

double residentBytes() {
  std::int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

data::Batch batchOf(const train::BatchShape& shape, const sharding::Coordinates& own, std::int64_t length,
                    std::int64_t vocabulary) {
  data::Batch batch(shape.rowsPerRank, length);
  const std::int64_t first = own.data * shape.rowsPerRank;
  for (std::int64_t at = 0; at < shape.rowsPerRank * length; ++at) {
    const auto index = static_cast<std::size_t>(at);
    const std::int64_t place = first * length + at;
    batch.tokens[index] = static_cast<std::int32_t>(place * 7919 % vocabulary);
    batch.targets[index] = static_cast<std::int32_t>((place + 1) * 7919 % vocabulary);
    batch.positions[index] = static_cast<std::int32_t>(at % length);
    batch.documentStart[index] = 0;
  }
  batch.targetCount = shape.rowsPerRank * length;
  return batch;
}

// Of a rank that computes on one thread.
struct Processor {
  std::unique_ptr<kernels::Backend> backend = kernels::makeCpuBackend({.threads = 1});
  std::unique_ptr<kernels::Stream> stream = backend->makeStream();

  train::Device device() const { return {*backend, *stream, std::make_shared<runtime::Arena>(*backend)}; }
};

class Bench {
 public:
  Bench(comm::Communicator& world, const Work& work)
      : world_(world), work_(work), configuration_(model::readConfiguration(work.model)) {
    request_.configuration = configuration_;
    request_.sequenceLength = work.sequenceLength;
    request_.batchTokens = work.rows * work.sequenceLength;
    request_.cluster = train::measureCluster(world, processor_.device(), request_.storage, gibi);
  }

  int run() {
    const std::vector<sharding::Plan> plans = allPlans();
    std::vector<Measured> measured(plans.size());
    for (int turn = 0; turn < work_.turns; ++turn) {
      for (std::size_t index = 0; index < plans.size(); ++index) measure(plans[index], measured[index]);
    }
    if (world_.rank() == 0) print(plans, measured);
    return 0;
  }

 private:
  // The best of each grid.
  std::vector<sharding::Plan> allPlans() const {
    std::vector<sharding::Plan> plans;
    for (sharding::Grid grid : sharding::fittingGrids(world_.size(), configuration_, work_.sequenceLength)) {
      if (work_.rows % grid.data != 0) continue;
      for (grid.zero = grid.replicas() > 1 ? 0 : 1; grid.zero <= (grid.replicas() > 1 ? 3 : 1); ++grid.zero) {
        sharding::PlanRequest request = request_;
        request.grid = grid;
        plans.push_back(sharding::planTraining(request).taken());
      }
    }
    return plans;
  }

  void measure(const sharding::Plan& plan, Measured& measured) {
    train::TrainOptions options;
    options.sequenceLength = work_.sequenceLength;
    options.batchTokens = request_.batchTokens;
    options.grid = plan.grid;
    options.recompute = plan.recompute;
    options.microBatch = plan.microBatch;
    const train::BatchShape shape = train::shareOut(options, plan.grid);
    const data::Batch batch = batchOf(shape, sharding::coordinatesOf(plan.grid, world_.rank()), work_.sequenceLength,
                                      configuration_.vocabularySize);
    malloc_trim(0);
    telemetry::forgetPeakResident();
    const double before = residentBytes();
    {
      const train::Device device = processor_.device();
      train::TrainingStep step(configuration_, options, shape, world_, device);
      train::initialise(configuration_, 1, step.parameters(), step.optimizer(), device);
      for (int index = 0; index <= work_.steps; ++index) {
        world_.barrier();
        const Clock::time_point start = Clock::now();
        step.run(batch, index + 1, 1e-4, 0);
        const double own = std::chrono::duration<double>(Clock::now() - start).count();
        const double seconds = comm::allReduceScalar(world_, own, comm::Reduction::maximum);
        if (index > 0) measured.seconds = std::min(measured.seconds, seconds);
      }
    }
    const double grown = static_cast<double>(telemetry::peakResidentBytes()) - before;
    measured.bytes = std::max(measured.bytes, comm::allReduceScalar(world_, grown, comm::Reduction::maximum));
  }

  void print(const std::vector<sharding::Plan>& plans, const std::vector<Measured>& measured) const {
    std::printf("%s on %d ranks, %lld rows of %lld tokens\n", work_.model.c_str(), world_.size(),
                static_cast<long long>(work_.rows), static_cast<long long>(work_.sequenceLength));
    const sharding::Cluster& cluster = request_.cluster;
    std::printf("measured: %.2f GFLOP/s, %.2f GB/s of memory, %.1f us a start, link %.2f GB/s and %.1f us\n",
                cluster.matrixRateF32 / 1e9, cluster.memoryRate / 1e9, cluster.launchSeconds * 1e6,
                cluster.inside.bytesPerSecond / 1e9, cluster.inside.latencySeconds * 1e6);
    std::printf("%-26s%-11s%6s%12s%12s%7s%10s%10s%7s\n", "grid", "recompute", "rows", "predicted", "grown by", "ratio",
                "predicted", "measured", "ratio");
    std::vector<double> memoryErrors, timeErrors;
    for (std::size_t index = 0; index < plans.size(); ++index) {
      const sharding::Plan& plan = plans[index];
      const double bytes = static_cast<double>(plan.memory.total()) / measured[index].bytes;
      const double seconds = plan.time.total() / measured[index].seconds;
      memoryErrors.push_back(std::abs(bytes - 1));
      timeErrors.push_back(std::abs(seconds - 1));
      std::printf("%-26s%-11s%6lld%12s%12s%7.2f%8.0fms%8.0fms%7.2f\n", plan.grid.text().c_str(),
                  sharding::recomputeText(plan.recompute).c_str(), static_cast<long long>(plan.microBatch),
                  base::formatBytes(plan.memory.total()).c_str(),
                  base::formatBytes(static_cast<std::int64_t>(measured[index].bytes)).c_str(), bytes,
                  1e3 * plan.time.total(), 1e3 * measured[index].seconds, seconds);
    }
    printErrors("memory", 0.05, memoryErrors);
    printErrors("time", 0.15, timeErrors);
    printChoice(plans, measured);
  }

  static void printErrors(const char* what, double goal, std::vector<double> errors) {
    std::ranges::sort(errors);
    const auto within = std::ranges::count_if(errors, [&](double error) { return error <= goal; });
    std::printf("%s: %lld of %zu grids within %.0f %%, half within %.0f %%, all within %.0f %%\n", what,
                static_cast<long long>(within), errors.size(), 100 * goal, 100 * errors[errors.size() / 2],
                100 * errors.back());
  }

  void printChoice(const std::vector<sharding::Plan>& plans, const std::vector<Measured>& measured) const {
    const sharding::Plan taken = sharding::planTraining(request_).taken();
    const auto own = std::ranges::find(plans, taken.grid, &sharding::Plan::grid) - plans.begin();
    const auto best = std::ranges::min_element(measured, {}, &Measured::seconds) - measured.begin();
    const double ratio =
        measured[static_cast<std::size_t>(own)].seconds / measured[static_cast<std::size_t>(best)].seconds;
    std::printf("taken: %s; fastest of all: %s; the one taken takes %.2f times as long\n\n", taken.grid.text().c_str(),
                plans[static_cast<std::size_t>(best)].grid.text().c_str(), ratio);
  }

  comm::Communicator& world_;
  Work work_;
  model::Configuration configuration_;
  Processor processor_;
  sharding::PlanRequest request_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fputs("usage: planner_bench MODEL.json ROWS SEQUENCE_LENGTH [STEPS [TURNS]]\n", stderr);
    return 2;
  }
  // Large blocks go back to the system when they are freed, so that the next grid's are counted.
  mallopt(M_MMAP_THRESHOLD, 128 << 10);
  Work work{.model = argv[1], .rows = std::atoll(argv[2]), .sequenceLength = std::atoll(argv[3])};
  if (argc > 4) work.steps = std::max(1, std::atoi(argv[4]));
  if (argc > 5) work.turns = std::max(1, std::atoi(argv[5]));
  return comm::Session::run(argc, argv, [&](comm::Communicator& world) { return Bench(world, work).run(); });
}
