// Reverse-mode differentiation of the list of nodes: walks it backwards and asks each operator's gradient rule.

#include "common/base/error.h"
#include "common/graph/detail/operator_entry.h"
#include "common/graph/operators.h"
#include "common/graph/passes.h"

namespace tandem::graph {
namespace detail {
namespace {

// What has a parameter behind it, by TensorId; what another stage has sent always has.
std::vector<bool> dependsOnParameters(const Program& program) {
  std::vector<bool> depends(program.tensors().size(), false);
  for (const TensorId id : program.ofRole(Role::parameter)) depends[static_cast<std::size_t>(id)] = true;
  for (const Node& node : program.nodes()) {
    bool any = node.op == Operator::receive;
    for (const TensorId id : node.inputs) any = any || (id != none && depends[static_cast<std::size_t>(id)]);
    for (const TensorId id : node.outputs) {
      if (id != none) depends[static_cast<std::size_t>(id)] = any;
    }
  }
  return depends;
}

}  // namespace

GradientBuilder::GradientBuilder(const Program& forward)
    : program_(forward), wanted_(dependsOnParameters(forward)), reached_(forward.tensors().size(), none) {}

bool GradientBuilder::wants(TensorId id) const { return id != none && wanted_[static_cast<std::size_t>(id)]; }

TensorId GradientBuilder::reached(TensorId id) const {
  return id == none ? none : reached_[static_cast<std::size_t>(id)];
}

TensorId GradientBuilder::makeTensor(const std::string& name, const Shape& shape, DType type, Role role) {
  return program_.addTensor(name, shape, type, role);
}

TensorId GradientBuilder::makeGradient(TensorId id) {
  const Tensor tensor = program_.tensor(id);
  std::string name = gradientName(tensor.name);
  for (int copy = 2; program_.find(name) != none; ++copy) name = gradientName(tensor.name) + "#" + std::to_string(copy);
  return program_.addTensor(name, tensor.shape, tensor.type, Role::activation);
}

void GradientBuilder::give(TensorId id, TensorId gradient) {
  if (!wants(id)) return;
  const TensorId before = reached(id);
  if (before == none) {
    replace(id, gradient);
    return;
  }
  const TensorId sum = makeGradient(id);
  append(Operator::add, {before, gradient}, {sum});
  replace(id, sum);
}

void GradientBuilder::replace(TensorId id, TensorId gradient) { reached_[static_cast<std::size_t>(id)] = gradient; }

TensorId GradientBuilder::ofParameter(TensorId parameter) {
  if (parameter == none || program_.tensor(parameter).role != Role::parameter) return none;
  const std::string name = gradientName(program_.tensor(parameter).name);
  const TensorId found = program_.find(name);
  if (found != none) return found;
  return program_.addTensor(name, Shape(program_.tensor(parameter).shape), DType::f32, Role::gradient);
}

TensorId GradientBuilder::ofWeight(TensorId weight) {
  if (weight == none || program_.tensor(weight).role != Role::frozen) return ofParameter(weight);
  const Tensor frozen = program_.tensor(weight);
  const std::string name = gradientName(frozen.name) + "#unread" + std::to_string(program_.nodes().size());
  return program_.addTensor(name, frozen.shape, DType::f32, Role::activation);
}

void GradientBuilder::append(Operator op, std::vector<TensorId> inputs, std::vector<TensorId> outputs,
                             Attributes attributes) {
  markGradients(program_.addNode(op, std::move(inputs), std::move(outputs), std::move(attributes)));
}

void GradientBuilder::markGradients(Node& node) {
  for (std::size_t index = 0; index < node.outputs.size(); ++index) {
    const TensorId id = node.outputs[index];
    if (id == none || program_.tensor(id).role != Role::gradient) continue;
    node.addsToOutput[index] = !written_.insert(id).second;
  }
}

Program GradientBuilder::run(std::size_t lossNode) {
  for (std::size_t index = lossNode + 1; index-- > 0;) {
    const Node node = this->node(index);
    bool used = index == lossNode, wanted = false;
    for (const TensorId id : node.outputs) used = used || reached(id) != none;
    for (const TensorId id : node.inputs) wanted = wanted || wants(id);
    wanted = wanted || node.op == Operator::receive;
    if (!used || !wanted) continue;
    const OperatorEntry& entry = entryOf(node.op);
    Checker(program_, index).expect(entry.gradient, "this operator cannot be trained through");
    program_.setLayer(node.layer);
    entry.gradient(*this, index);
  }
  program_.setLayer(-1);
  checkEveryParameterIsReached();
  return program_;
}

void GradientBuilder::checkEveryParameterIsReached() const {
  for (const TensorId id : program_.ofRole(Role::parameter)) {
    const std::string& name = program_.tensor(id).name;
    const bool isHeld = program_.tensor(id).shape.count() > 0;  // or other ranks have it
    if (!isHeld || written_.contains(program_.find(gradientName(name)))) continue;
    throw base::Error(base::ErrorKind::usage,
                      "the parameter '" + name +
                          "' does not reach the loss, so it has no gradient; remove it, or give "
                          "it the role frozen");
  }
}

}  // namespace detail

bool endsForwardPass(const Node& node) {
  if (node.op == Operator::send) return std::get<MessageAttributes>(node.attributes).isForward;
  return node.op == Operator::linearCrossEntropy || node.op == Operator::mergeCrossEntropy;
}

Program differentiate(const Program& forward) {
  const std::vector<Node>& nodes = forward.nodes();
  std::size_t lossNode = nodes.size();
  for (std::size_t index = 0; index < nodes.size(); ++index) {
    if (!endsForwardPass(nodes[index])) continue;
    const detail::Checker checker(forward, index);
    checker.expect(lossNode == nodes.size(), "a program to be differentiated has one loss or sends once, not more");
    checker.expect(forward.find("gradScale") == none, "the program is differentiated already");
    lossNode = index;
  }
  if (lossNode == nodes.size()) {
    throw base::Error(base::ErrorKind::usage,
                      "the program cannot be differentiated: it has no linearCrossEntropy node, so no loss");
  }
  Program result = detail::GradientBuilder(forward).run(lossNode);
  check(result);
  return result;
}

}  // namespace tandem::graph
