#include "common/sharding/data_parallel.h"

#include <algorithm>

namespace tandem::sharding {
namespace {

// For each bucket, the index of the last node that writes a gradient of it; -1 where none does.
std::vector<std::int64_t> lastWriters(const graph::Program& program, const FlatLayout& layout) {
  std::vector<std::int32_t> bucketOf(program.tensors().size(), -1);
  for (const FlatParameter& parameter : layout.parameters()) {
    const graph::TensorId gradient = program.find(graph::gradientName(parameter.name));
    if (gradient != graph::none) bucketOf[static_cast<std::size_t>(gradient)] = parameter.bucket;
  }
  std::vector<std::int64_t> last(static_cast<std::size_t>(layout.buckets()), -1);
  for (std::size_t index = 0; index < program.nodes().size(); ++index) {
    for (const graph::TensorId output : program.nodes()[index].outputs) {
      if (output == graph::none || bucketOf[static_cast<std::size_t>(output)] < 0) continue;
      last[static_cast<std::size_t>(bucketOf[static_cast<std::size_t>(output)])] = static_cast<std::int64_t>(index);
    }
  }
  return last;
}

graph::Node exchangeNode(graph::Operator op, std::int32_t bucket) {
  graph::Node node;
  node.op = op;
  node.inputs = {graph::none};  // what is exchanged lies outside
  node.attributes = graph::CollectiveAttributes{.bucket = bucket};
  return node;
}

}  // namespace

graph::Program placeReduceScatters(const graph::Program& program, const FlatLayout& layout) {
  const std::vector<std::int64_t> last = lastWriters(program, layout);
  graph::Program result = program;
  std::vector<graph::Node> nodes;
  for (std::size_t index = 0; index < program.nodes().size(); ++index) {
    nodes.push_back(program.nodes()[index]);
    for (std::size_t bucket = 0; bucket < last.size(); ++bucket) {
      if (last[bucket] != static_cast<std::int64_t>(index)) continue;
      nodes.push_back(exchangeNode(graph::Operator::reduceScatter, static_cast<std::int32_t>(bucket)));
    }
  }
  result.nodes() = std::move(nodes);
  return result;
}

graph::Program placeWeightWaits(const graph::Program& program, const FlatLayout& layout) {
  std::vector<std::int32_t> bucketOf(program.tensors().size(), -1);
  for (const FlatParameter& parameter : layout.parameters()) {
    const graph::TensorId weight = program.find(parameter.name);
    if (weight != graph::none) bucketOf[static_cast<std::size_t>(weight)] = parameter.bucket;
  }
  graph::Program result = program;
  std::vector<graph::Node> nodes;
  std::vector<bool> waited(static_cast<std::size_t>(layout.buckets()), false);
  for (const graph::Node& node : program.nodes()) {
    for (const graph::TensorId input : node.inputs) {
      const std::int32_t bucket = input == graph::none ? -1 : bucketOf[static_cast<std::size_t>(input)];
      if (bucket < 0 || waited[static_cast<std::size_t>(bucket)]) continue;
      waited[static_cast<std::size_t>(bucket)] = true;
      nodes.push_back(exchangeNode(graph::Operator::waitForWeights, bucket));
    }
    nodes.push_back(node);
  }
  result.nodes() = std::move(nodes);
  return result;
}

double parameterExchangeBytes(const Grid& grid, std::int64_t parameters, base::DType storage,
                              std::int64_t microBatches) {
  const double members = grid.replicas(), micro = static_cast<double>(microBatches);
  const double others = (members - 1) / members * static_cast<double>(parameters);
  const double gradients = others * static_cast<double>(base::byteSize(base::DType::f32));
  const double weights = others * static_cast<double>(base::byteSize(storage));
  switch (grid.zero) {
    case 0:
      return 2 * gradients;  // an all-reduce: to their owner, and back
    case 1:
      return gradients + weights;
    case 2:
      return micro * gradients + weights;
    default:
      return micro * (gradients + 2 * weights);  // forward and backward
  }
}

}  // namespace tandem::sharding
