#include "common/sharding/detail/predictor.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tandem::sharding {
namespace {

constexpr std::int64_t gradientBytes = 4, masterBytes = 4;
constexpr double bucketElements = 4 << 20;  // of gradients, exchanged at once

double real(std::int64_t number) { return static_cast<double>(number); }

std::int64_t divideUp(std::int64_t number, std::int64_t by) { return (number + by - 1) / by; }

struct Seconds {
  double forward = 0, backward = 0;
  double attentionForward = 0, attentionBackward = 0;  // of these, what a ring of keys and values can hide behind
  double sum() const { return forward + backward; }
};

// One plan of a request: all that its formulas need, named.
class Case {
 public:
  Case(const PlanRequest& request, const StepCounts& counts, const RankCounts& held, Plan& plan)
      : c_(request.configuration),
        cluster_(request.cluster),
        held_(held),
        plan_(plan),
        grid_(plan.grid),
        low_(request.storage != base::DType::f32),
        valueBytes_(real(base::byteSize(request.storage))),
        momentBytes_(2 * real(base::byteSize(request.moments))),
        matrixRate_(request.cluster.matrixRate(request.storage)),
        // The fullest rank's part of what tensor ranks share out; heads are dealt out whole.
        tensorShare_(real(divideUp(c_.heads, grid_.tensor)) / real(c_.heads)),
        rowTokens_(real(request.sequenceLength) / grid_.context),
        rows_(real(plan.microBatch)) {
    layer_ = secondsOf(counts.layer);
    front_ = secondsOf(counts.front);
    back_ = secondsOf(counts.back);
    plan_.stageLayers = balanceStages(c_.layers, grid_.pipeline, back_.sum() / layer_.sum());
  }

  void predict() {
    predictMemory();
    predictTime();
  }

 private:
  // Operations or bytes, whichever take longer, node by node.
  Seconds secondsOf(const std::vector<NodeCount>& nodes) const {
    const double share = rows_ * tensorShare_ / grid_.context;
    Seconds seconds;
    for (const NodeCount& node : nodes) {
      const double bytes = node.parameterBytes * tensorShare_ + node.activationBytes * share;
      const double one =
          std::max(node.flops * share / matrixRate_, bytes / cluster_.memoryRate) + cluster_.launchSeconds;
      (node.backward ? seconds.backward : seconds.forward) += one;
      if (node.attention) (node.backward ? seconds.attentionBackward : seconds.attentionForward) += one;
    }
    return seconds;
  }

  // Elements of the parameters that a rank of this stage computes with.
  double parametersOf(int stage) const {
    std::int64_t elements = plan_.stageLayers[static_cast<std::size_t>(stage)] * held_.layerParameters;
    const bool last = stage + 1 == grid_.pipeline;
    if (stage == 0) elements += held_.frontParameters;
    if (last) elements += held_.backParameters;
    if (last && stage > 0 && c_.tiedEmbeddings) elements += held_.frontParameters;
    return real(elements);
  }

  PredictedMemory memoryOf(int stage) const {
    const double parameters = parametersOf(stage);
    const double shared = parameters / grid_.replicas();
    // What ZeRO 2 and 3 still hold whole: the layer at work, and the next one's weights on their way.
    const double layer = std::min(real(held_.layerParameters), parameters);
    PredictedMemory memory;
    const auto bytes = [](double elements, double each) { return static_cast<std::int64_t>(elements * each); };
    memory.weights = bytes(grid_.zero >= 3 ? shared + 2 * layer : parameters, valueBytes_);
    memory.gradients = bytes(grid_.zero >= 2 ? shared + layer : parameters, gradientBytes);
    memory.optimizerStates =
        bytes(grid_.zero >= 1 ? shared : parameters, momentBytes_ + (low_ ? real(masterBytes) : 0.0));
    memory.activations = activationsOf(stage);
    return memory;
  }

  std::int64_t activationsOf(int stage) const {
    // One forward and one backward in turn: the first stage has begun as many micro batches as there are stages, each
    // with memory of its own.
    const std::int64_t begun = std::min<std::int64_t>(grid_.pipeline - stage, plan_.microBatches);
    const std::int64_t whole =
        held_.kept * plan_.stageLayers[static_cast<std::size_t>(stage)] + held_.transient + held_.inputs;
    return static_cast<std::int64_t>(rows_ / grid_.context * real(whole * begun));
  }

  void predictMemory() {
    for (int stage = 0; stage < grid_.pipeline; ++stage) {
      const PredictedMemory one = memoryOf(stage);
      if (one.total() > plan_.memory.total()) plan_.memory = one;
    }
  }

  void predictTime() {
    Seconds stage;
    double parameters = 0;
    std::int64_t mostLayers = 0;
    for (int s = 0; s < grid_.pipeline; ++s) {
      const Seconds one = stageSeconds(s);
      if (one.sum() > stage.sum()) stage = one;
      parameters = std::max(parameters, parametersOf(s));
      mostLayers = std::max(mostLayers, plan_.stageLayers[static_cast<std::size_t>(s)]);
    }
    PredictedTime& time = plan_.time;
    const double microBatches = real(plan_.microBatches);
    const double tensor = tensorSeconds(mostLayers), context = contextSeconds(mostLayers);
    time.compute = microBatches * stage.sum();
    time.tensor = microBatches * tensor;
    time.context = microBatches * context;
    time.bubble = (grid_.pipeline - 1) * (stage.sum() + tensor + context);
    time.pipeline = pipelineSeconds();
    time.update = updateSeconds(parameters);
    predictData(parameters, stage);
  }

  Seconds stageSeconds(int stage) const {
    const double layers = real(plan_.stageLayers[static_cast<std::size_t>(stage)]);
    Seconds seconds;
    seconds.forward = layers * layer_.forward;
    seconds.backward = layers * layer_.backward;
    const auto add = [&](const Seconds& part) {
      seconds.forward += part.forward;
      seconds.backward += part.backward;
    };
    if (stage == 0) add(front_);
    if (stage + 1 == grid_.pipeline) add(back_);
    return seconds;
  }

  // A gather, or a sum dealt out, of so many bytes in all over a group: each rank moves all but its own part.
  static double exchange(double bytes, int members, const Link& link) {
    if (members == 1) return 0;
    return bytes * (members - 1) / members / link.bytesPerSecond + std::ceil(std::log2(members)) * link.latencySeconds;
  }

  double tensorSeconds(std::int64_t layers) const {
    if (grid_.tensor == 1) return 0;
    // Around attention and around the MLP, a gather and a sum dealt out; the same in the backward pass, which gathers
    // the products' inputs once more where they were not kept, and all of the forward pass where that runs again.
    const double eachLayer = plan_.recompute == graph::Recompute::nothing     ? 8
                             : plan_.recompute == graph::Recompute::selective ? 10
                                                                              : 12;
    constexpr double outside = 4;
    const double bytes = rows_ * rowTokens_ * real(c_.width) * valueBytes_;
    return (eachLayer * real(layers) + outside) * exchange(bytes, grid_.tensor, linkOfGroup(cluster_, grid_.tensor, 1));
  }

  double contextSeconds(std::int64_t layers) {
    if (grid_.context == 1) return 0;
    const Link link = linkOfGroup(cluster_, grid_.context, grid_.tensor);
    const double keysAndValues = 2 * rows_ * rowTokens_ * real(c_.kvHeads * c_.headSize) * valueBytes_ *
                                 std::max(tensorShare_, 1.0 / real(c_.kvHeads));
    const double ring = (grid_.context - 1) * (keysAndValues / link.bytesPerSecond + link.latencySeconds);
    // Backward, their gradients go round as well.
    return real(layers) * (exposed(ring, layer_.attentionForward, plan_.microBatches * layers) +
                           exposed(2 * ring, layer_.attentionBackward, plan_.microBatches * layers));
  }

  double pipelineSeconds() const {
    if (grid_.pipeline == 1) return 0;
    const Link link = linkOfGroup(cluster_, grid_.pipeline, grid_.data * grid_.context * grid_.tensor);
    const double bytes = rows_ * rowTokens_ * real(c_.width) * valueBytes_ / grid_.tensor;
    const double there = bytes / link.bytesPerSecond + link.latencySeconds;
    // There and back; only filling and draining wait for it where exchanges go on beside computing.
    return 2 * there * ((grid_.pipeline - 1) + (1 - cluster_.overlap) * real(plan_.microBatches));
  }

  // Reads and writes of the update: gradient, moments, master or weight, and the rounded weight.
  double updateSeconds(double parameters) const {
    const double owned = grid_.zero >= 1 ? parameters / grid_.replicas() : parameters;
    const double bytes = gradientBytes * 2 + 2 * momentBytes_ + 2 * masterBytes + (low_ ? valueBytes_ : 0.0);
    return owned * bytes / cluster_.memoryRate;
  }

  void predictData(double parameters, const Seconds& stage) {
    const int members = grid_.replicas();
    if (members == 1) return;
    const Link link = linkOfGroup(cluster_, members, grid_.tensor);
    const double buckets = std::max(1.0, parameters / bucketElements);
    const double sums = buckets * exchange(parameters * gradientBytes / buckets, members, link);
    const double gather = buckets * exchange(parameters * valueBytes_ / buckets, members, link);
    double& time = plan_.time.data;
    // The last bucket is complete when nothing is left to compute.
    const auto ofGradients = [&](double seconds) {
      const double last = seconds / buckets;
      return last + exposed(seconds - last, stage.backward, 1);
    };
    const std::int64_t exchanges = grid_.zero >= 2 ? plan_.microBatches : 1;
    for (std::int64_t index = 0; index < exchanges; ++index) time += ofGradients(sums);
    if (grid_.zero == 0) time += sums;  // the second half of an all-reduce
    if (grid_.zero == 1 || grid_.zero == 2) time += gather;
    if (grid_.zero < 3) return;
    // Weights of one layer after the other, the next while one computes; in both passes.
    const double first = gather / std::max(1.0, real(c_.layers));
    for (std::int64_t index = 0; index < plan_.microBatches; ++index) {
      time += 2 * first + exposed(gather - first, stage.forward, 1) + exposed(gather - first, stage.backward, 1);
    }
  }

  // What of an exchange is left when it goes on beside so much computing; notes what is not, `times` over.
  double exposed(double seconds, double beside, std::int64_t times) {
    const double hidden = std::min(seconds, beside) * cluster_.overlap;
    plan_.time.hidden += hidden * real(times);
    return seconds - hidden;
  }

  const model::Configuration& c_;
  const Cluster& cluster_;
  const RankCounts& held_;
  Plan& plan_;
  Grid grid_;
  bool low_;
  double valueBytes_;   // of a weight or an activation
  double momentBytes_;  // both, of a parameter
  double matrixRate_;
  double tensorShare_;
  double rowTokens_;  // of a row, on one rank
  double rows_;
  Seconds layer_, front_, back_;
};

}  // namespace

Plan detail::Predictor::predict(const Grid& grid, graph::Recompute recompute, std::int64_t microBatch) {
  std::optional<StepCounts>& counts = counts_[static_cast<std::size_t>(recompute)];
  if (!counts) {
    counts = countStep(request_->configuration, request_->sequenceLength, request_->storage, recompute);
  }
  Plan plan{.grid = grid, .recompute = recompute, .microBatch = microBatch};
  const std::int64_t rowsOfRank = request_->batchTokens / request_->sequenceLength / grid.data;
  plan.microBatches = divideUp(rowsOfRank, microBatch);
  Case(*request_, *counts, rankCountsOf(recompute, grid.tensor), plan).predict();
  return plan;
}

const RankCounts& detail::Predictor::rankCountsOf(graph::Recompute recompute, int tensorRanks) {
  const auto [entry, isNew] = rankCounts_.try_emplace({recompute, tensorRanks});
  if (isNew) {
    entry->second =
        countRank(request_->configuration, request_->sequenceLength, request_->storage, recompute, tensorRanks);
  }
  return entry->second;
}

std::vector<std::int64_t> balanceStages(std::int64_t layers, int stages, double backLayers) {
  if (stages == 1) return {layers};
  // Every number of layers for the last stage; the others share the rest.
  std::int64_t lastLayers = 0;
  double least = INFINITY;
  for (std::int64_t last = 1; last <= layers - (stages - 1); ++last) {
    const double slowest = std::max(real(divideUp(layers - last, stages - 1)), real(last) + backLayers);
    if (slowest <= least) {
      least = slowest;
      lastLayers = last;
    }
  }
  std::vector<std::int64_t> result;
  for (int stage = 0; stage + 1 < stages; ++stage) {
    const std::int64_t begin = (layers - lastLayers) * stage / (stages - 1);
    result.push_back((layers - lastLayers) * (stage + 1) / (stages - 1) - begin);
  }
  result.push_back(lastLayers);
  return result;
}

Plan predict(const PlanRequest& request, const Grid& grid, graph::Recompute recompute, std::int64_t microBatch) {
  return detail::Predictor(request).predict(grid, recompute, microBatch);
}

}  // namespace tandem::sharding
