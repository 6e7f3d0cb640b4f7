#include "common/sharding/step_counts.h"

#include <algorithm>

#include "common/graph/operators.h"
#include "common/model/transformer.h"
#include "common/sharding/partition.h"

namespace tandem::sharding {
namespace {

using graph::Node;
using graph::Operator;
using graph::Program;
using graph::Role;
using graph::Tensor;

constexpr std::int64_t fewLayers = 2;

Program trainingProgram(model::Configuration configuration, std::int64_t layers, std::int64_t sequenceLength,
                        base::DType storage, graph::Recompute recompute, int tensorRanks) {
  configuration.layers = layers;
  const Program whole = model::buildLoss(configuration, 1, sequenceLength, storage);
  const Program forward = graph::fuse(splitOverTensorRanks(whole, 0, tensorRanks).program);
  return graph::recompute(graph::fuse(graph::differentiate(forward)), recompute);
}

std::int64_t bytesOf(const Tensor& tensor) { return tensor.shape.count() * base::byteSize(tensor.type); }

bool readsRowsOfATable(const Node& node) {
  return node.op == Operator::embedding || node.op == Operator::embeddingBackward;
}

NodeCount countNode(const Program& program, const Node& node) {
  const graph::Cost cost = graph::cost(program, node);
  NodeCount count;
  count.flops = cost.flops;
  if (!readsRowsOfATable(node)) {
    for (const auto* operands : {&node.inputs, &node.outputs}) {
      for (const graph::TensorId id : *operands) {
        if (id == graph::none) continue;
        const Tensor& tensor = program.tensor(id);
        if (tensor.role != Role::parameter && tensor.role != Role::gradient) continue;
        count.parameterBytes += static_cast<double>(bytesOf(tensor));
      }
    }
  }
  count.activationBytes = std::max(0.0, cost.bytes - count.parameterBytes);
  count.attention = node.op == Operator::attention || node.op == Operator::attentionBackward;
  return count;
}

void countNodes(const Program& program, StepCounts& counts) {
  bool backward = false;
  for (const Node& node : program.nodes()) {
    NodeCount count = countNode(program, node);
    count.backward = backward;
    if (node.op == Operator::linearCrossEntropy) backward = true;
    if (readsRowsOfATable(node)) {
      counts.front.push_back(count);
    } else if (node.layer < 0) {
      counts.back.push_back(count);
    } else if (node.layer == 1) {  // one between others: the first and the last may be fused with what lies outside
      counts.layer.push_back(count);
    }
  }
}

void countParameters(const Program& program, RankCounts& counts) {
  for (const graph::TensorId id : program.ofRole(Role::parameter)) {
    const Tensor& parameter = program.tensor(id);
    if (parameter.name.starts_with("layers.1.")) counts.layerParameters += parameter.shape.count();
    if (parameter.name.starts_with("layers.")) continue;
    (parameter.name.starts_with("embedding.") ? counts.frontParameters : counts.backParameters) +=
        parameter.shape.count();
  }
}

}  // namespace

StepCounts countStep(const model::Configuration& configuration, std::int64_t sequenceLength, base::DType storage,
                     graph::Recompute recompute) {
  StepCounts counts;
  const Program program = trainingProgram(configuration, fewLayers + 1, sequenceLength, storage, recompute, 1);
  countNodes(program, counts);
  return counts;
}

RankCounts countRank(const model::Configuration& configuration, std::int64_t sequenceLength, base::DType storage,
                     graph::Recompute recompute, int tensorRanks) {
  const auto program = [&](std::int64_t layers) {
    return trainingProgram(configuration, layers, sequenceLength, storage, recompute, tensorRanks);
  };
  const Program few = program(fewLayers), more = program(fewLayers + 1);
  RankCounts counts;
  countParameters(more, counts);
  const std::int64_t fewBytes = graph::planMemory(few).peakLiveBytes;
  counts.kept = graph::planMemory(more).peakLiveBytes - fewBytes;
  counts.transient = fewBytes - fewLayers * counts.kept;
  for (const Role role : {Role::input, Role::output}) {
    for (const graph::TensorId id : few.ofRole(role)) counts.inputs += bytesOf(few.tensor(id));
  }
  return counts;
}

}  // namespace tandem::sharding
