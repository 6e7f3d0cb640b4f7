// Linear layers with 8-bit operands: which nodes belong to a layer is seen by its weight.
#include <algorithm>

#include "common/graph/detail/operator_entry.h"
#include "common/graph/passes.h"

namespace tandem::graph {
namespace {

// The weight of a linear layer that a node is a part of; none for other nodes.
TensorId weightOf(const Program& program, const Node& node) {
  switch (node.op) {
    case Operator::linear:
    case Operator::linearBackwardInput:
      return node.inputs[1];
    case Operator::linearBackwardWeight: {
      if (node.outputs[0] == none) return none;
      for (const TensorId id : program.ofRole(Role::parameter)) {
        if (gradientName(program.tensor(id).name) == program.tensor(node.outputs[0]).name) return id;
      }
      return none;
    }
    default:
      return none;
  }
}

bool isMultipleOf16(std::int64_t extent) { return extent > 0 && extent % 16 == 0; }

bool takesFp8(const Program& program, const Node& node, const Tensor& weight, const std::string& prefix) {
  const std::int64_t rows = detail::inputOf(program, node, 0).shape.rows();
  return weight.role == Role::parameter && weight.name.starts_with(prefix) && isMultipleOf16(rows) &&
         isMultipleOf16(weight.shape[0]) && isMultipleOf16(weight.shape[1]);
}

}  // namespace

std::string fp8StateName(const std::string& weight) { return weight + ".fp8"; }

Program useFp8(const Program& program, const std::string& prefix) {
  Program result = program;
  for (Node& node : result.nodes()) {
    const TensorId id = weightOf(result, node);
    if (id == none) continue;
    const Tensor weight = result.tensor(id);
    if (!takesFp8(result, node, weight, prefix)) continue;
    LinearAttributes attributes;
    if (const auto* own = std::get_if<LinearAttributes>(&node.attributes)) attributes = *own;
    const std::string name = fp8StateName(weight.name);
    attributes.fp8 = result.find(name);
    if (attributes.fp8 == none) {
      attributes.fp8 = result.addTensor(name, {kernels::fp8::count}, DType::f32, Role::state);
    }
    node.attributes = attributes;
  }
  return result;
}

std::vector<std::string> fp8Weights(const Program& program) {
  std::vector<std::string> weights;
  for (const Tensor& tensor : program.tensors()) {
    if (tensor.role == Role::parameter && program.find(fp8StateName(tensor.name)) != none)
      weights.push_back(tensor.name);
  }
  return weights;
}

}  // namespace tandem::graph
