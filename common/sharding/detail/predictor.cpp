#include "common/sharding/detail/predictor.h"

#include <algorithm>
#include <cmath>

#include "common/comm/exchange_room.h"
#include "common/model/transformer.h"
#include "common/sharding/pipeline.h"

namespace tandem::sharding {
namespace {

constexpr std::int64_t gradientBytes = 4, masterBytes = 4;

double real(std::int64_t number) { return static_cast<double>(number); }

std::int64_t divideUp(std::int64_t number, std::int64_t by) { return (number + by - 1) / by; }

// Of one micro batch on one stage.
struct StageSeconds {
  double forward = 0, backward = 0;  // computing
  double tensor = 0, context = 0;    // exchanges that computing does not hide
  double hidden = 0;                 // those that it does
  double computing() const { return forward + backward; }
  double total() const { return computing() + tensor + context; }
};

// One plan of a request: all that its formulas need, named.
class Case {
 public:
  Case(const PlanRequest& request, detail::Predictor& counts, Plan& plan)
      : c_(request.configuration),
        cluster_(request.cluster),
        counts_(counts),
        plan_(plan),
        grid_(plan.grid),
        low_(request.storage != base::DType::f32),
        valueBytes_(real(base::byteSize(request.storage))),
        momentBytes_(2 * real(base::byteSize(request.moments))),
        bucketElements_(real(request.bucketElements)),
        matrixRate_(request.cluster.matrixRate(request.storage)),
        rowTokens_(real(request.sequenceLength) / grid_.context),
        rows_(real(plan.microBatch)),
        countedRows_(grid_.context == 1 ? rows_ : rows_ * 2 / grid_.context) {}

  void predict() {
    predictMemory();
    predictTime();
  }

 private:
  std::int64_t layersOf(int stage) const { return plan_.stageLayers[static_cast<std::size_t>(stage)]; }
  const StageCounts& countsOf(int stage) const {
    return counts_.countsOf({.recompute = plan_.recompute,
                             .tensor = grid_.tensor,
                             .ring = grid_.context > 1,
                             .zero = grid_.sharesGradients() ? grid_.zero : 0,
                             .isFirst = stage == 0,
                             .isLast = stage + 1 == grid_.pipeline});
  }

  // --- memory

  PredictedMemory memoryOf(int stage) const {
    const StageMemory held = countsOf(stage).memory(layersOf(stage), countedRows_);
    const std::int64_t shared = divideUp(held.parameters, grid_.replicas());
    const auto bytes = [](std::int64_t elements, double each) {
      return static_cast<std::int64_t>(real(elements) * each);
    };
    PredictedMemory memory;
    memory.weights = bytes(grid_.sharesWeights() ? shared : held.parameters, valueBytes_);
    memory.gradients = bytes(grid_.sharesGradients() ? shared : held.parameters, gradientBytes);
    memory.optimizerStates =
        bytes(grid_.zero >= 1 ? shared : held.parameters, momentBytes_ + (low_ ? real(masterBytes) : 0.0));
    // One forward and one backward in turn: the first stage has begun as many micro batches as there are stages, each
    // with memory of its own.
    const std::int64_t begun = microBatchesInFlight(stage, grid_.pipeline, plan_.microBatches);
    memory.buckets = begun * held.peak.buckets;
    memory.activations = begun * (held.peak.activations + held.inputs);
    if (cluster_.exchangesOnHost) memory.exchanges = roomForSums(held);
    return memory;
  }

  // Of one bucket. The library's all-reduce holds as much as it adds up; a sum that is dealt out a few segments of it.
  std::int64_t roomForSums(const StageMemory& held) const {
    if (grid_.replicas() == 1) return 0;
    const std::int64_t bucket =
        gradientBytes * (grid_.sharesGradients()
                             ? held.largestBucket
                             : std::min(held.parameters, static_cast<std::int64_t>(bucketElements_)));
    if (grid_.zero == 0) return bucket;
    return comm::reduceScatterRoom(grid_.replicas(), divideUp(bucket, grid_.replicas()));
  }

  void predictMemory() {
    for (int stage = 0; stage < grid_.pipeline; ++stage) {
      const PredictedMemory one = memoryOf(stage);
      if (one.total() > plan_.memory.total()) plan_.memory = one;
    }
  }

  // --- time

  void predictTime() {
    StageSeconds slowest, one;
    std::int64_t parameters = 0;
    double ofAllStages = 0;
    for (int stage = 0; stage < grid_.pipeline; ++stage) {
      // Stages between the first and the last with as many layers are all alike.
      const bool isLikeTheLast = stage > 1 && stage + 1 < grid_.pipeline && layersOf(stage) == layersOf(stage - 1);
      if (!isLikeTheLast) {
        one = secondsOf(stage);
        parameters = std::max(parameters, countsOf(stage).memory(layersOf(stage), countedRows_).parameters);
      }
      if (one.total() > slowest.total()) slowest = one;
      ofAllStages += one.computing();
    }
    PredictedTime& time = plan_.time;
    const double microBatches = real(plan_.microBatches);
    time.tensor = microBatches * slowest.tensor;
    time.context = microBatches * slowest.context;
    time.hidden = microBatches * slowest.hidden;
    predictComputing(slowest, ofAllStages / grid_.pipeline);
    time.pipeline = pipelineSeconds();
    time.update = updateSeconds(real(parameters));
    predictData(real(parameters), slowest);
  }

  // The slowest stage's micro batches, after those that fill the pipeline and drain it. Where ranks share processors, a
  // stage that waits leaves its part to the others: then the stages' work in all can be what takes the time.
  void predictComputing(const StageSeconds& slowest, double meanOfStages) {
    const double microBatches = real(plan_.microBatches), others = grid_.pipeline - 1;
    const double inTurn = (microBatches + others) * slowest.computing() / cluster_.sharing;
    const double whole = std::max(inTurn, microBatches * meanOfStages);
    plan_.time.compute = std::min(microBatches * slowest.computing(), whole);
    plan_.time.bubble = whole - plan_.time.compute + others * (slowest.tensor + slowest.context);
  }

  StageSeconds secondsOf(int stage) const {
    StageSeconds seconds;
    const Link tensor = linkOfGroup(cluster_, grid_.tensor, 1);
    countsOf(stage).visitNodes(layersOf(stage), [&](const NodeCount& node, double times) {
      const double computing = secondsOf(node);
      (node.backward ? seconds.backward : seconds.forward) += times * computing;
      if (node.exchange == Exchange::tensor) {
        seconds.tensor += times * exchange(countedRows_ * node.exchangedBytes, grid_.tensor, tensor);
      }
      if (node.exchange == Exchange::context) addRing(node, times, computing, seconds);
    });
    return seconds;
  }

  // Operations or bytes, whichever take longer.
  double secondsOf(const NodeCount& node) const {
    if (node.exchange == Exchange::tensor) return 0;
    const double bytes = node.parameterBytes + node.activationBytes * countedRows_;
    return std::max(node.flops * countedRows_ / matrixRate_, bytes / cluster_.memoryRate) + cluster_.launchSeconds;
  }

  // The fused projection goes round while attention is computed, backward with its gradients, which come home.
  void addRing(const NodeCount& node, double times, double computing, StageSeconds& seconds) const {
    const Link link = linkOfGroup(cluster_, grid_.context, grid_.tensor);
    const double turns = node.backward ? 2 * grid_.context - 1 : grid_.context - 1;
    const double ring = turns * (countedRows_ * node.exchangedBytes / link.bytesPerSecond + link.latencySeconds);
    const double hidden = std::min(ring, computing) * cluster_.overlap;
    seconds.context += times * (ring - hidden);
    seconds.hidden += times * hidden;
  }

  // A gather, or a sum dealt out, of so many bytes in all over a group: each rank moves all but its own part.
  static double exchange(double bytes, int members, const Link& link) {
    if (members == 1) return 0;
    return bytes * (members - 1) / members / link.bytesPerSecond + std::ceil(std::log2(members)) * link.latencySeconds;
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

  void predictData(double parameters, const StageSeconds& stage) {
    const int members = grid_.replicas();
    if (members == 1) return;
    const Link link = linkOfGroup(cluster_, members, grid_.tensor);
    const auto inBuckets = [&](double bytes, double buckets) {
      return buckets * exchange(bytes / buckets, members, link);
    };
    const BucketCount shared = countsOf(0).buckets(layersOf(0));
    const double buckets = grid_.sharesGradients() ? shared.gradients : std::max(1.0, parameters / bucketElements_);
    const double sums = inBuckets(parameters * gradientBytes, buckets);
    const double micro = real(plan_.microBatches);
    double& time = plan_.time.data;
    // The last bucket is complete when nothing is left to compute.
    const double last = sums / buckets;
    time += (grid_.sharesGradients() ? micro : 1) *
            (last + exposed(sums - last, stage.backward, grid_.sharesGradients() ? plan_.microBatches : 1));
    if (grid_.zero == 0) time += sums;  // the second half of an all-reduce
    if (grid_.zero == 1 || grid_.zero == 2) time += inBuckets(parameters * valueBytes_, buckets);
    if (grid_.zero < 3) return;
    // Weights of one bucket after the other, the next while one computes; in both passes.
    const double weights = shared.forwardBytes + shared.backwardBytes;
    const double gathered = inBuckets(weights, shared.gatherings), first = gathered * shared.firstBytes / weights;
    const double forward = gathered * shared.forwardBytes / weights;
    time += micro * (exposed(forward - first / 2, stage.forward, plan_.microBatches) + first +
                     exposed(gathered - forward - first / 2, stage.backward, plan_.microBatches));
  }

  // What of an exchange is left when it goes on beside so much computing; notes what is not, `times` over.
  double exposed(double seconds, double beside, std::int64_t times) {
    const double hidden = std::min(seconds, beside) * cluster_.overlap;
    plan_.time.hidden += hidden * real(times);
    return seconds - hidden;
  }

  const model::Configuration& c_;
  const Cluster& cluster_;
  detail::Predictor& counts_;
  Plan& plan_;
  Grid grid_;
  bool low_;
  double valueBytes_;   // of a weight or an activation
  double momentBytes_;  // both, of a parameter
  double bucketElements_;
  double matrixRate_;
  double rowTokens_;  // of a row, on one rank
  double rows_;
  double countedRows_;  // of the counts, which have two context ranks or none
};

}  // namespace

Plan detail::Predictor::predict(const Grid& grid, graph::Recompute recompute, std::int64_t microBatch) {
  Plan plan{.grid = grid, .recompute = recompute, .microBatch = microBatch};
  const std::int64_t rowsOfRank = request_->batchTokens / request_->sequenceLength / grid.data;
  plan.microBatches = divideUp(rowsOfRank, microBatch);
  plan.stageLayers = layersOfStages(grid.pipeline);
  Case(*request_, *this, plan).predict();
  return plan;
}

const StageCounts& detail::Predictor::countsOf(const StageShape& shape) {
  const auto found = counts_.find(shape);
  if (found != counts_.end()) return found->second;
  return counts_.try_emplace(shape, programs_, request_->bucketElements, shape).first->second;
}

const std::vector<std::int64_t>& detail::Predictor::layersOfStages(int stages) {
  const auto [entry, isNew] = layers_.try_emplace(stages);
  if (isNew) {
    const graph::Program whole =
        model::buildLoss(request_->configuration, 1, request_->sequenceLength, request_->storage);
    for (const Range& layers : stageLayers(whole, stages)) entry->second.push_back(layers.count);
  }
  return entry->second;
}

Plan predict(const PlanRequest& request, const Grid& grid, graph::Recompute recompute, std::int64_t microBatch) {
  return detail::Predictor(request).predict(grid, recompute, microBatch);
}

}  // namespace tandem::sharding
