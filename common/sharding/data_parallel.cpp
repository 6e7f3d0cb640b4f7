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

}  // namespace

graph::Program placeReduceScatters(const graph::Program& program, const FlatLayout& layout) {
  const std::vector<std::int64_t> last = lastWriters(program, layout);
  graph::Program result = program;
  std::vector<graph::Node> nodes;
  for (std::size_t index = 0; index < program.nodes().size(); ++index) {
    nodes.push_back(program.nodes()[index]);
    for (std::size_t bucket = 0; bucket < last.size(); ++bucket) {
      if (last[bucket] != static_cast<std::int64_t>(index)) continue;
      graph::Node exchange;
      exchange.op = graph::Operator::reduceScatter;
      exchange.inputs = {graph::none};  // gradients lie outside
      exchange.attributes = graph::CollectiveAttributes{.bucket = static_cast<std::int32_t>(bucket)};
      nodes.push_back(exchange);
    }
  }
  result.nodes() = std::move(nodes);
  return result;
}

}  // namespace tandem::sharding
