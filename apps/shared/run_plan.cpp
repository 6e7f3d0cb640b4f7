#include "apps/shared/run_plan.h"

#include "common/base/units.h"
#include "common/model/transformer.h"

namespace tandem::app {
namespace {

std::string describeModel(const model::Configuration& configuration, base::DType storage) {
  const std::int64_t parameters = model::buildLoss(configuration, 1, 1, storage).parameterCount();
  return configuration.type + " model of " + std::to_string(parameters) + " parameters (" +
         base::formatCount(static_cast<double>(parameters)) + ")\n";
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

}  // namespace tandem::app
