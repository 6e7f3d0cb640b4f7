// Registry entries: activation and add.

#include "common/graph/detail/operator_entry.h"

namespace tandem::graph::detail {
namespace {

using kernels::ActivationKind;

// SwiGLU takes rows of twice the width: the gate and the value side by side.
void expectActivationInput(const Checker& checker, const CheckedOperand& input, const CheckedOperand& output,
                           ActivationKind kind) {
  checker.expect(kind != ActivationKind::none, "an activation node without an activation");
  Shape expected = output.shape();
  if (kind == ActivationKind::swiglu) expected[expected.rank() - 1] *= 2;
  checker.expectShape(input, output.type(), expected);
}

void checkActivation(const Checker& checker) {
  checker.expectStorage(checker.output(0));
  expectActivationInput(checker, checker.input(0), checker.output(0), checker.attributes<ActivationAttributes>().kind);
}

void checkActivationBackward(const Checker& checker) {
  checker.expectStorage(checker.input(0));
  expectActivationInput(checker, checker.input(1), checker.input(0), checker.attributes<ActivationAttributes>().kind);
  checker.expectSame(checker.output(0), checker.input(1));
}

void activationGradient(GradientBuilder& builder, std::size_t index) {
  const Node node = builder.node(index);
  const TensorId gradInput = builder.makeGradient(node.inputs[0]);
  builder.append(Operator::activationBackward, {builder.reached(node.outputs[0]), node.inputs[0]}, {gradInput},
                 node.attributes);
  builder.give(node.inputs[0], gradInput);
}

void runActivation(const Call& call, kernels::Backend& backend, kernels::Stream& stream) {
  kernels::Activation operation;
  operation.kind = call.attributes<ActivationAttributes>().kind;
  operation.input = call.inputRows(0);
  operation.output = call.outputRows(0);
  backend.run(operation, stream);
}

void runActivationBackward(const Call& call, kernels::Backend& backend, kernels::Stream& stream) {
  kernels::ActivationBackward operation;
  operation.kind = call.attributes<ActivationAttributes>().kind;
  operation.gradOutput = call.inputRows(0);
  operation.input = call.inputRows(1);
  operation.gradInput = call.outputRows(0);
  backend.run(operation, stream);
}

void checkAdd(const Checker& checker) {
  checker.expectStorage(checker.input(0));
  checker.expectSame(checker.input(1), checker.input(0));
  checker.expectSame(checker.output(0), checker.input(0));
}

void addGradient(GradientBuilder& builder, std::size_t index) {
  const Node node = builder.node(index);
  const TensorId gradient = builder.reached(node.outputs[0]);
  builder.give(node.inputs[0], gradient);
  builder.give(node.inputs[1], gradient);
}

void runAdd(const Call& call, kernels::Backend& backend, kernels::Stream& stream) {
  kernels::Add operation;
  operation.left = call.inputRows(0);
  operation.right = call.inputRows(1);
  operation.output = call.outputRows(0);
  backend.run(operation, stream);
}

}  // namespace

OperatorEntry activationEntry() {
  return {.name = "activation",
          .inputs = {{"input"}},
          .outputs = {{"output"}},
          .check = checkActivation,
          .gradient = activationGradient,
          .run = runActivation};
}

OperatorEntry activationBackwardEntry() {
  return {.name = "activationBackward",
          .inputs = {{"gradOutput"}, {"input"}},
          .outputs = {{"gradInput"}},
          .check = checkActivationBackward,
          .run = runActivationBackward,
          .mayShare = [](const Node& node, int, int input) {
            return input == 0 && std::get<ActivationAttributes>(node.attributes).kind != ActivationKind::swiglu;
          }};
}

OperatorEntry addEntry() {
  return {.name = "add",
          .inputs = {{"left"}, {"right"}},
          .outputs = {{"output"}},
          .check = checkAdd,
          .gradient = addGradient,
          .run = runAdd,
          .mayShare = [](const Node&, int, int) { return true; }};
}

}  // namespace tandem::graph::detail
