#include "apps/shared/run_plan.h"

#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "common/model/transformer.h"
#include "common/telemetry/device_sensors.h"
#include "common/telemetry/host_sensors.h"
#include "common/train/measured_cluster.h"
#include "common/train/memory_need.h"
#include "common/train/trainer.h"

namespace tandem::app {
namespace {

std::string describeModel(const model::Configuration& configuration, base::DType storage) {
  const std::int64_t parameters = model::buildLoss(configuration, 1, 1, storage).parameterCount();
  return configuration.type + " model of " + std::to_string(parameters) + " parameters (" +
         base::formatCount(static_cast<double>(parameters)) + ")\n";
}

// What is free to this rank; ranks of a host share its memory.
double freeBytes(comm::Communicator& world, const ChosenDevice* chosen) {
  const std::string instead = "; give --memory-limit, or --micro-batch a number";
  if (chosen == nullptr || chosen->backend->isHostMemory()) {
    const std::optional<std::int64_t> available = telemetry::HostSensors().read().availableBytes;
    if (available) return static_cast<double>(*available) / world.ranksOnThisHost();
    throw base::Error(base::ErrorKind::usage,
                      "--micro-batch auto: the system does not say what memory is free" + instead);
  }
  const telemetry::OpenedSensors opened = telemetry::openNvml(chosen->backend->deviceIdentifier());
  const std::optional<std::int64_t> available = opened.sensors ? opened.sensors->read().freeBytes : std::nullopt;
  if (available) return static_cast<double>(*available);
  throw base::Error(base::ErrorKind::usage, "--micro-batch auto: the device does not say what memory is free" +
                                                (opened.whyNot.empty() ? "" : " (" + opened.whyNot + ")") + instead);
}

// Of the rank with the least.
train::MemoryLimit memoryLimit(comm::Communicator& world, const ChosenDevice* chosen, const TrainingTexts& texts) {
  constexpr double gibi = 1024.0 * 1024.0 * 1024.0, usable = 0.9;
  train::MemoryLimit limit{.isOfHost = chosen == nullptr || chosen->backend->isHostMemory()};
  comm::agreeOn(world, [&] {
    const double bytes = texts.memoryLimit > 0 ? texts.memoryLimit * gibi : usable * freeBytes(world, chosen);
    limit.bytes = static_cast<std::int64_t>(bytes);
  });
  limit.bytes = comm::allReduceScalar(world, limit.bytes, comm::Reduction::minimum);
  return limit;
}

void takePlan(comm::Communicator& world, const ChosenDevice& chosen, const TrainingTexts& texts,
              train::TrainOptions& options) {
  const train::MemoryLimit limit = memoryLimit(world, &chosen, texts);
  const sharding::Cluster cluster = train::measureCluster(world, chosen.device(), options.storage, limit.bytes);
  sharding::PlanRequest request = planRequest(options, texts, cluster);
  const sharding::Planning planning = sharding::planTraining(request);
  const sharding::Plan& plan = planning.taken();
  options.grid = plan.grid;
  options.recompute = plan.recompute;
  options.microBatch = plan.microBatch;
  TANDEM_LOG(info) << "--shard auto:\n" << sharding::describe(request, planning);
}

}  // namespace

sharding::PlanRequest planRequest(const train::TrainOptions& options, const TrainingTexts& texts,
                                  const sharding::Cluster& cluster) {
  sharding::PlanRequest request;
  request.configuration = train::configurationOf(options);
  request.whyRefused = [options](const sharding::Grid& grid) { return train::whyNotRunnable(options, grid); };
  request.sequenceLength = options.sequenceLength;
  request.batchTokens = options.batchTokens;
  request.storage = options.storage;
  request.moments = options.optimizer.states;
  request.bucketElements = options.bucketElements;
  request.cluster = cluster;
  if (!texts.shard.empty() && texts.shard != "auto") request.grid = sharding::parseGrid(texts.shard, cluster.devices());
  if (options.microBatch > 0) request.microBatch = options.microBatch;
  if (texts.recompute != "auto") request.recompute = options.recompute;
  return request;
}

std::string describeClusterPlan(const train::TrainOptions& options, const TrainingTexts& texts) {
  const sharding::PlanRequest request = planRequest(options, texts, sharding::readCluster(texts.cluster));
  return describeModel(request.configuration, request.storage) +
         sharding::describe(request, sharding::planTraining(request));
}

void chooseSplit(comm::Communicator& world, const ChosenDevice* chosen, const TrainingTexts& texts,
                 train::TrainOptions& options) {
  if (texts.shard == "auto") {
    if (chosen == nullptr) {
      throw base::Error(base::ErrorKind::usage,
                        "--shard auto measures the ranks of a run; a --dry-run plans for what --cluster describes");
    }
    takePlan(world, *chosen, texts, options);
  } else if (texts.microBatch == "auto") {
    const train::MemoryLimit limit = memoryLimit(world, chosen, texts);
    options.microBatch = train::largestMicroBatch(options, world.size(), limit);
    TANDEM_LOG(info) << "--micro-batch auto takes " << options.microBatch << ": the most rows that fit into "
                     << base::formatBytes(limit.bytes) << " a rank";
  }
}

}  // namespace tandem::app
