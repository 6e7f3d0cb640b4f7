#include "common/sharding/step_counts.h"

#include <algorithm>

#include "common/graph/operators.h"
#include "common/model/transformer.h"

namespace tandem::sharding {
namespace {

using graph::Node;
using graph::Operator;
using graph::Program;
using graph::Role;
using graph::Tensor;

constexpr std::int64_t fewLayers = 2;

Program trainingProgram(model::Configuration configuration, std::int64_t layers, std::int64_t sequenceLength,
                        base::DType storage, graph::Recompute recompute) {
  configuration.layers = layers;
  const Program forward = graph::fuse(model::buildLoss(configuration, 1, sequenceLength, storage));
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

void countParameters(const Program& program, StepCounts& counts) {
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
  const Program few = trainingProgram(configuration, fewLayers, sequenceLength, storage, recompute);
  const Program more = trainingProgram(configuration, fewLayers + 1, sequenceLength, storage, recompute);
  countNodes(more, counts);
  countParameters(more, counts);
  const std::int64_t fewBytes = graph::planMemory(few).peakLiveBytes;
  const std::int64_t moreBytes = graph::planMemory(more).peakLiveBytes;
  counts.keptBytes = moreBytes - fewBytes;
  counts.transientBytes = fewBytes - fewLayers * counts.keptBytes;
  for (const Role role : {Role::input, Role::output}) {
    for (const graph::TensorId id : more.ofRole(role)) counts.inputBytes += bytesOf(more.tensor(id));
  }
  return counts;
}

}  // namespace tandem::sharding
