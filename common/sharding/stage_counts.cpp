#include "common/sharding/stage_counts.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/graph/operators.h"
#include "common/sharding/rank_program.h"

namespace tandem::sharding {
namespace {

using graph::LiveBytes;
using graph::Node;
using graph::none;
using graph::Operator;
using graph::Program;
using graph::Role;
using graph::Tensor;
using graph::TensorId;

std::int64_t bytesOf(const Tensor& tensor) { return tensor.shape.count() * base::byteSize(tensor.type); }

// Of the tensor ranks, one that has most: shares need not be equal.
int fullestTensorRank(const model::Configuration& c, int ranks) {
  int fullest = 0;
  std::int64_t most = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const HeadShare heads = headShare(c.heads, c.kvHeads, ranks, rank);
    const std::int64_t ofAttention = 2 * c.layers * c.headSize * (heads.heads.count + heads.kvHeads.count);
    const std::int64_t ofMlp = 3 * c.layers * evenShare(c.mlpWidth, ranks, rank).count;
    const std::int64_t rows = ofAttention + ofMlp + evenShare(c.vocabularySize, ranks, rank).count;
    if (rows > most) {
      most = rows;
      fullest = rank;
    }
  }
  return fullest;
}

// The forward pass of a stage of so many layers, with one layer each for what stands around it.
PartitionedProgram stagePart(model::Configuration configuration, std::int64_t layers, std::int64_t sequenceLength,
                             base::DType storage, const StageShape& shape) {
  std::vector<Range> stages;
  std::int64_t begin = 0;
  const auto append = [&](std::int64_t count) {
    stages.push_back({begin, count});
    begin += count;
  };
  if (!shape.isFirst) append(1);
  append(layers);
  if (!shape.isLast) append(1);
  configuration.layers = begin;
  const Grid grid{.pipeline = static_cast<int>(stages.size()), .context = shape.ring ? 2 : 1, .tensor = shape.tensor};
  return lossPart(configuration, 1, sequenceLength, storage, grid,
                  {.pipeline = shape.isFirst ? 0 : 1, .tensor = fullestTensorRank(configuration, shape.tensor)}, {},
                  stages);
}

// --- nodes
// ---------------------------------------------------------------------------------------------------------------

bool readsRowsOfATable(const Node& node) {
  return node.op == Operator::embedding || node.op == Operator::embeddingBackward;
}

double parameterBytes(const Program& program, const Node& node) {
  if (readsRowsOfATable(node)) return 0;
  double bytes = 0;
  for (const auto* operands : {&node.inputs, &node.outputs}) {
    for (const TensorId id : *operands) {
      if (id == none) continue;
      const Tensor& tensor = program.tensor(id);
      if (tensor.role == Role::parameter || tensor.role == Role::gradient)
        bytes += static_cast<double>(bytesOf(tensor));
    }
  }
  return bytes;
}

void countExchange(const Program& program, const Node& node, NodeCount& count) {
  const auto carries = [&](Exchange exchange, TensorId whole) {
    count.exchange = exchange;
    count.exchangedBytes = static_cast<double>(bytesOf(program.tensor(whole)));
  };
  if (node.op == Operator::gatherRows) carries(Exchange::tensor, node.outputs[0]);
  if (node.op == Operator::scatterRows) carries(Exchange::tensor, node.inputs[0]);
  if (node.op == Operator::ringAttention || node.op == Operator::ringAttentionBackward) {
    carries(Exchange::context, node.inputs[0]);
  }
}

NodeCount countNode(const Program& program, const Node& node) {
  NodeCount count{.op = node.op};
  countExchange(program, node, count);
  if (graph::exchangesActivations(node.op) && count.exchange != Exchange::context) return count;
  const graph::Cost cost = graph::cost(program, node);
  count.parameterBytes = parameterBytes(program, node);
  count.flops = cost.flops;
  count.activationBytes = std::max(0.0, cost.bytes - count.parameterBytes);
  return count;
}

// The first node of the backward pass.
std::size_t backwardBegin(const Program& program) {
  const auto end = std::ranges::find_if(program.nodes(), graph::endsForwardPass);
  return static_cast<std::size_t>(end - program.nodes().begin()) + 1;
}

std::int32_t firstLayerOf(const Program& program) {
  std::int32_t first = std::numeric_limits<std::int32_t>::max();
  for (const Node& node : program.nodes()) {
    if (node.layer >= 0) first = std::min(first, node.layer);
  }
  return first;
}

// Each kind of node once, with how many there are.
std::vector<std::pair<NodeCount, double>> countNodes(const Program& program) {
  const std::size_t backward = backwardBegin(program);
  const std::int32_t inner = firstLayerOf(program) + 1;
  std::vector<std::pair<NodeCount, double>> counts;
  for (std::size_t index = 0; index < program.nodes().size(); ++index) {
    const Node& node = program.nodes()[index];
    NodeCount count = countNode(program, node);
    count.backward = index >= backward;
    count.ofInnerLayer = node.layer == inner;
    const auto found = std::ranges::find(counts, count, &std::pair<NodeCount, double>::first);
    if (found == counts.end()) {
      counts.emplace_back(count, 1);
    } else {
      ++found->second;
    }
  }
  return counts;
}

// --- buckets
// -------------------------------------------------------------------------------------------------------------

BucketCount countBuckets(const Program& program) {
  const std::size_t backward = backwardBegin(program);
  BucketCount count;
  for (std::size_t index = 0; index < program.nodes().size(); ++index) {
    const Node& node = program.nodes()[index];
    if (node.op == Operator::reduceScatter) ++count.gradients;
    if (node.op != Operator::gatherWeights) continue;
    const auto bytes = static_cast<double>(bytesOf(program.tensor(node.outputs[0])));
    double& pass = index < backward ? count.forwardBytes : count.backwardBytes;
    if (pass == 0) count.firstBytes += bytes;
    pass += bytes;
    ++count.gatherings;
  }
  return count;
}

BucketCount extrapolate(const BucketCount& few, const BucketCount& more, double layers) {
  const auto value = [&](double BucketCount::*which) { return few.*which + layers * (more.*which - few.*which); };
  return {.gradients = value(&BucketCount::gradients),
          .gatherings = value(&BucketCount::gatherings),
          .forwardBytes = value(&BucketCount::forwardBytes),
          .backwardBytes = value(&BucketCount::backwardBytes),
          .firstBytes = value(&BucketCount::firstBytes)};
}

// --- memory
// --------------------------------------------------------------------------------------------------------------

// Those of which none other is larger for any number of rows.
std::vector<LiveBytes> largest(std::vector<LiveBytes> all) {
  std::ranges::sort(all, [](const LiveBytes& left, const LiveBytes& right) {
    return std::pair(left.buckets, left.activations) > std::pair(right.buckets, right.activations);
  });
  std::vector<LiveBytes> kept;
  for (const LiveBytes& one : all) {
    if (kept.empty() || one.activations > kept.back().activations) kept.push_back(one);
  }
  return kept;
}

// Bytes of so many rows, where the most is alive.
LiveBytes peakOf(const std::vector<LiveBytes>& moments, double rows) {
  LiveBytes peak;
  for (const LiveBytes& moment : moments) {
    const auto activations = static_cast<std::int64_t>(rows * static_cast<double>(moment.activations));
    if (moment.buckets + activations > peak.buckets + peak.activations) peak = {moment.buckets, activations};
  }
  return peak;
}

LiveBytes larger(const LiveBytes& left, const LiveBytes& right) {
  return left.buckets + left.activations >= right.buckets + right.activations ? left : right;
}

}  // namespace

const PartitionedProgram& StagePrograms::forward(const StageShape& shape, std::int64_t layers) {
  StageShape own = shape;
  own.recompute = {};
  own.zero = {};
  const auto [entry, isNew] = forward_.try_emplace({own, layers});
  if (isNew) entry->second = stagePart(configuration_, layers, sequenceLength_, storage_, own);
  return entry->second;
}

const Program& StagePrograms::training(const StageShape& shape, std::int64_t layers) {
  StageShape own = shape;
  own.zero = {};
  const auto [entry, isNew] = training_.try_emplace({own, layers});
  if (!isNew) return entry->second;
  own.recompute = {};
  const auto [differentiated, isNewer] = differentiated_.try_emplace({own, layers});
  if (isNewer) differentiated->second = withBackwardPass(forward(own, layers).program);
  return entry->second = withRecomputation(differentiated->second, shape.recompute);
}

const StageCounts::Counted& StageCounts::counted(std::int64_t layers) const {
  std::optional<Counted>& entry = counted_[static_cast<std::size_t>(layers - 1)];
  if (entry) return *entry;
  entry.emplace();
  // Any two ranks share out what more of them would.
  const Grid grid{.data = shape_.zero >= 2 ? 2 : 1, .zero = shape_.zero};
  const PartitionedProgram& part = programs_.forward(shape_, layers);
  const Program& computing = programs_.training(shape_, layers);
  const FlatLayout layout = layoutOf(part.program, grid.sharers(), FlatLayout::Ownership::anywhere, part.parts,
                                     Role::parameter, bucketElements_, grid.sharesGradients());
  const Program program = withExchanges(computing, layout, grid, 0);
  entry->nodes = countNodes(computing);
  entry->parameters = layout.count();
  for (int bucket = 0; bucket < layout.buckets(); ++bucket) {
    entry->largestBucket = std::max(entry->largestBucket, layout.bucketCount(bucket));
  }
  for (const Role role : {Role::input, Role::output}) {
    for (const TensorId id : program.ofRole(role)) entry->inputs += bytesOf(program.tensor(id));
  }
  if (grid.sharesGradients()) entry->buckets = countBuckets(program);

  const std::int32_t further = firstLayerOf(program) + static_cast<std::int32_t>(few / 2);
  const auto isFurther = [&](const Node& node) { return node.layer >= further; };
  const auto first = std::ranges::find_if(program.nodes(), isFurther) - program.nodes().begin();
  const auto end =
      std::find_if(program.nodes().rbegin(), program.nodes().rend(), isFurther).base() - program.nodes().begin();
  std::vector<LiveBytes> live = graph::liveBytes(program);
  if (first < end) {
    entry->ofRest = largest({live.begin() + first, live.begin() + end});
    live.erase(live.begin() + first, live.begin() + end);
  }
  entry->ofFirstLayers = largest(std::move(live));
  return *entry;
}

StageMemory StageCounts::memory(std::int64_t layers, double rows) const {
  const auto ofRows = [&](std::int64_t bytes) { return static_cast<std::int64_t>(rows * static_cast<double>(bytes)); };
  if (layers <= few + 1) {
    const Counted& all = counted(layers);
    return {.parameters = all.parameters,
            .largestBucket = all.largestBucket,
            .inputs = ofRows(all.inputs),
            .peak = larger(peakOf(all.ofFirstLayers, rows), peakOf(all.ofRest, rows))};
  }
  const Counted &less = counted(few), &more = counted(few + 1);
  const std::int64_t further = layers - few;
  const auto line = [&](std::int64_t ofFew, std::int64_t ofMore) { return ofFew + further * (ofMore - ofFew); };
  const LiveBytes lessPeak = peakOf(less.ofRest, rows), morePeak = peakOf(more.ofRest, rows);
  const LiveBytes rest{.buckets = line(lessPeak.buckets, morePeak.buckets),
                       .activations = line(lessPeak.activations, morePeak.activations)};
  return {.parameters = line(less.parameters, more.parameters),
          .largestBucket = more.largestBucket,
          .inputs = ofRows(less.inputs),
          .peak = larger(peakOf(less.ofFirstLayers, rows), rest)};
}

BucketCount StageCounts::buckets(std::int64_t layers) const {
  if (layers <= few + 1) return counted(layers).buckets;
  return extrapolate(counted(few).buckets, counted(few + 1).buckets, static_cast<double>(layers - few));
}

void StageCounts::visitNodes(std::int64_t layers,
                             const std::function<void(const NodeCount&, double times)>& visit) const {
  const double inner = static_cast<double>(std::max<std::int64_t>(layers - few, 0)) + 1;
  for (const auto& [node, count] : counted(std::min(layers, few)).nodes) {
    visit(node, node.ofInnerLayer ? inner * count : count);
  }
}

}  // namespace tandem::sharding
