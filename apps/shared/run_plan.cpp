#include "apps/shared/run_plan.h"

#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "common/model/transformer.h"
#include "common/telemetry/device_sensors.h"
#include "common/telemetry/host_sensors.h"
#include "common/train/memory_need.h"

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

}  // namespace

sharding::PlanRequest planRequest(const train::TrainOptions& options, const TrainingTexts& texts,
                                  const sharding::Cluster& cluster) {
  sharding::PlanRequest request;
  request.configuration = model::readConfiguration(options.model);
  request.sequenceLength = options.sequenceLength;
  request.batchTokens = options.batchTokens;
  request.storage = options.storage;
  request.moments = options.optimizer.states;
  request.cluster = cluster;
  if (options.microBatch > 0) request.microBatch = options.microBatch;
  if (texts.recompute != "auto") request.recompute = options.recompute;
  return request;
}

std::string describeClusterPlan(const train::TrainOptions& options, const TrainingTexts& texts) {
  const sharding::PlanRequest request = planRequest(options, texts, sharding::readCluster(texts.cluster));
  return describeModel(request.configuration, request.storage) +
         sharding::describe(request, sharding::planTraining(request));
}

void chooseMicroBatch(comm::Communicator& world, const ChosenDevice* chosen, const TrainingTexts& texts,
                      train::TrainOptions& options) {
  if (texts.microBatch != "auto") return;
  constexpr double gibi = 1024.0 * 1024.0 * 1024.0, usable = 0.9;
  train::MemoryLimit limit{.holdsCheckpointCopy = chosen == nullptr || chosen->backend->isHostMemory()};
  comm::agreeOn(world, [&] {
    const double bytes = texts.memoryLimit > 0 ? texts.memoryLimit * gibi : usable * freeBytes(world, chosen);
    limit.bytes = static_cast<std::int64_t>(bytes);
  });
  limit.bytes = comm::allReduceScalar(world, limit.bytes, comm::Reduction::minimum);
  options.microBatch = train::largestMicroBatch(options, world.size(), limit);
  TANDEM_LOG(info) << "--micro-batch auto takes " << options.microBatch << ": the most rows that fit into "
                   << base::formatBytes(limit.bytes) << " a rank";
}

}  // namespace tandem::app
