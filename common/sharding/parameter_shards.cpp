#include "common/sharding/parameter_shards.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/graph/passes.h"

namespace tandem::sharding {
namespace {

using graph::Node;
using graph::none;
using graph::Operator;
using graph::Program;
using graph::Role;
using graph::TensorId;

std::string bucketName(const char* what, int bucket) {
  return std::string(what) + " of bucket " + std::to_string(bucket);
}

Node exchangeNode(Operator op, int bucket, std::vector<TensorId> inputs, std::vector<TensorId> outputs = {}) {
  Node node;
  node.op = op;
  node.inputs = std::move(inputs);
  node.outputs = std::move(outputs);
  node.addsToOutput.assign(node.outputs.size(), false);
  node.attributes = graph::CollectiveAttributes{.bucket = bucket};
  return node;
}

// Nodes that are to stand in front of those of a program.
class Insertions {
 public:
  void put(std::size_t before, Node node) { byPlace_[before].push_back(std::move(node)); }
  void apply(Program& program) const {
    std::vector<Node> nodes;
    const auto take = [&](std::size_t place) {
      const auto found = byPlace_.find(place);
      if (found != byPlace_.end()) nodes.insert(nodes.end(), found->second.begin(), found->second.end());
    };
    for (std::size_t index = 0; index < program.nodes().size(); ++index) {
      take(index);
      nodes.push_back(program.nodes()[index]);
    }
    take(program.nodes().size());
    program.nodes() = std::move(nodes);
  }

 private:
  std::map<std::size_t, std::vector<Node>> byPlace_;
};

// A run of nodes that reads a bucket of weights, without one between them that reads another.
struct Reading {
  int bucket = 0;
  std::size_t first = 0, last = 0;  // nodes
};

std::vector<std::int32_t> bucketsOfWeights(const Program& program, const FlatLayout& layout) {
  std::vector<std::int32_t> bucketOf(program.tensors().size(), -1);
  for (const FlatParameter& parameter : layout.parameters()) {
    const TensorId id = program.find(parameter.name);
    if (id != none && parameter.count > 0) bucketOf[static_cast<std::size_t>(id)] = parameter.bucket;
  }
  return bucketOf;
}

// Where the backward pass of a stage begins that hands its activations on; the end where there is no such place.
std::size_t handingOver(const Program& program) {
  for (std::size_t index = 0; index < program.nodes().size(); ++index) {
    const Node& node = program.nodes()[index];
    if (node.op == Operator::send && graph::endsForwardPass(node)) return index + 1;
  }
  return program.nodes().size();
}

std::vector<Reading> readingsOf(const Program& program, const std::vector<std::int32_t>& bucketOf,
                                std::size_t handedOver) {
  std::vector<Reading> readings;
  for (std::size_t index = 0; index < program.nodes().size(); ++index) {
    for (const TensorId input : program.nodes()[index].inputs) {
      if (input == none || bucketOf[static_cast<std::size_t>(input)] < 0) continue;
      const int bucket = bucketOf[static_cast<std::size_t>(input)];
      // A node may read two: each goes on with its own.
      const auto open = std::find_if(readings.rbegin(), readings.rend(),
                                     [&](const Reading& reading) { return reading.bucket == bucket; });
      const bool goesOn = open != readings.rend() && (open->last < handedOver) == (index < handedOver) &&
                          std::ranges::none_of(readings, [&](const Reading& other) {
                            return other.last > open->last && other.last < index;
                          });
      if (goesOn) {
        open->last = index;
      } else {
        readings.push_back({bucket, index, index});
      }
    }
  }
  return readings;
}

// The node in front of which the gathering for a reading is to start.
std::size_t gatheringStart(const std::vector<Reading>& readings, std::size_t which, const FlatLayout& layout,
                           std::size_t handedOver) {
  const Reading& own = readings[which];
  const std::size_t least = own.first < handedOver ? 0 : handedOver;
  std::size_t start = which == 0 ? least : own.first;
  std::int64_t between = 0;
  for (std::size_t earlier = which; earlier-- > 0;) {
    const Reading& reading = readings[earlier];
    if (reading.bucket == own.bucket || reading.first < least || 2 * between >= layout.bucketCount(own.bucket)) break;
    start = std::min(start, reading.first);
    between += layout.bucketCount(reading.bucket);
  }
  const bool isFirstOfPass = which == 0 || readings[which - 1].first < least;
  return isFirstOfPass ? least : std::max(start, least);
}

}  // namespace

Program shardGradients(const Program& program, const FlatLayout& layout, int rank) {
  Program result = program;
  std::map<int, TensorId> wholes;
  std::map<int, std::size_t> last;
  for (const FlatParameter& parameter : layout.parameters()) {
    const TensorId gradient = result.find(graph::gradientName(parameter.name));
    if (gradient == none || parameter.count == 0) continue;
    if (!wholes.contains(parameter.bucket)) {
      wholes[parameter.bucket] =
          result.addTensor(bucketName("gradients", parameter.bucket), {layout.bucketCount(parameter.bucket)},
                           base::DType::f32, Role::activation);
    }
    result.tensor(gradient).partOf = wholes[parameter.bucket];
    result.tensor(gradient).partBegin = parameter.offset - layout.bucketBegin(parameter.bucket);
    for (std::size_t index = 0; index < program.nodes().size(); ++index) {
      if (std::ranges::count(program.nodes()[index].outputs, gradient) == 0) continue;
      last[parameter.bucket] = std::max(last[parameter.bucket], index);
    }
  }
  result.addTensor(gradientShard, {layout.shardCount(rank)}, base::DType::f32, Role::gradient);

  std::vector<std::pair<std::size_t, int>> order;  // of completion
  for (const auto& [bucket, index] : last) order.emplace_back(index, bucket);
  std::ranges::sort(order);
  Insertions insertions;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto [index, bucket] = order[i];
    insertions.put(index + 1, exchangeNode(Operator::reduceScatter, bucket, {wholes[bucket]}));
    // Waited for behind the next one's start, so that the link has no pause.
    if (i == 0) continue;
    const int before = order[i - 1].second;
    insertions.put(index + 1, exchangeNode(Operator::waitForSums, before, {wholes[before]}));
  }
  if (!order.empty()) {
    const int bucket = order.back().second;
    insertions.put(program.nodes().size(), exchangeNode(Operator::waitForSums, bucket, {wholes[bucket]}));
  }
  insertions.apply(result);
  return result;
}

Program shardWeights(const Program& program, const FlatLayout& layout, int rank) {
  Program result = program;
  const std::vector<std::int32_t> bucketOf = bucketsOfWeights(program, layout);
  const std::size_t handedOver = handingOver(program);
  const std::vector<Reading> readings = readingsOf(program, bucketOf, handedOver);
  Insertions insertions;
  base::DType storage = base::DType::f32;
  for (std::size_t which = 0; which < readings.size(); ++which) {
    const Reading& reading = readings[which];
    const std::string suffix = "#" + std::to_string(which);
    std::optional<TensorId> whole;
    for (const FlatParameter& parameter : layout.parameters()) {
      if (parameter.bucket != reading.bucket || parameter.count == 0) continue;
      const TensorId id = program.find(parameter.name);
      if (id == none) continue;
      const graph::Tensor tensor = program.tensor(id);
      storage = tensor.type;
      if (!whole) {
        whole = result.addTensor(bucketName("weights", reading.bucket) + suffix, {layout.bucketCount(reading.bucket)},
                                 storage, Role::activation);
      }
      const TensorId part = result.addTensor(tensor.name + suffix, tensor.shape, tensor.type, Role::activation);
      result.tensor(part).partOf = *whole;
      result.tensor(part).partBegin = parameter.offset - layout.bucketBegin(parameter.bucket);
      for (std::size_t index = reading.first; index <= reading.last; ++index) {
        std::ranges::replace(result.nodes()[index].inputs, id, part);
      }
    }
    insertions.put(gatheringStart(readings, which, layout, handedOver),
                   exchangeNode(Operator::gatherWeights, reading.bucket, {}, {*whole}));
    insertions.put(reading.first, exchangeNode(Operator::waitForWeights, reading.bucket, {*whole}));
  }
  for (const FlatParameter& parameter : layout.parameters()) {
    const TensorId id = result.find(parameter.name);
    if (id != none && parameter.count > 0) result.tensor(id).role = Role::activation;  // that no node names
  }
  result.addTensor(weightShard, {layout.shardCount(rank)}, storage, Role::parameter);
  insertions.apply(result);
  return result;
}

}  // namespace tandem::sharding
