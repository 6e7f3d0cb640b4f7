// Registry entries: activation, add and dropout.

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

kernels::Activation activationOperation(const Call& call) {
  return {
      .kind = call.attributes<ActivationAttributes>().kind, .input = call.inputRows(0), .output = call.outputRows(0)};
}

kernels::ActivationBackward activationBackwardOperation(const Call& call) {
  return {.kind = call.attributes<ActivationAttributes>().kind,
          .gradOutput = call.inputRows(0),
          .input = call.inputRows(1),
          .gradInput = call.outputRows(0)};
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

void checkDropout(const Checker& checker) {
  const CheckedOperand input = checker.input(0), keys = checker.input(1);
  const DropoutAttributes& attributes = checker.attributes<DropoutAttributes>();
  checker.expectStorage(input);
  checker.expectSame(checker.output(0), input);
  checker.expectShape(keys, DType::i32, {input.shape()[0], 2});
  checker.expect(attributes.rate >= 0 && attributes.rate < 1, "the rate is from 0 to below 1");
  checker.expect(static_cast<bool>(keys) == (attributes.rate > 0), "keys are given where something is dropped");
}

void dropoutGradient(GradientBuilder& builder, std::size_t index) {
  const Node node = builder.node(index);
  const TensorId gradInput = builder.makeGradient(node.inputs[0]);
  builder.append(Operator::dropout, {builder.reached(node.outputs[0]), node.inputs[1]}, {gradInput}, node.attributes);
  builder.give(node.inputs[0], gradInput);
}

// A row of the batch is one row of the kernel, with all its tokens.
kernels::Dropout dropoutOperation(const Call& call) {
  const DropoutAttributes& attributes = call.attributes<DropoutAttributes>();
  const kernels::TensorView input = call.input(0);
  const Shape rows = {input.shape[0], input.shape[0] > 0 ? input.shape.count() / input.shape[0] : 0};
  return {.input = kernels::TensorView(input.data, input.type, rows),
          .keys = call.input(1),
          .output = kernels::TensorView(call.output(0).data, input.type, rows),
          .rate = attributes.rate,
          .factor = attributes.factor,
          .purpose = attributes.purpose};
}

kernels::Add addOperation(const Call& call) {
  return {.left = call.inputRows(0), .right = call.inputRows(1), .output = call.outputRows(0)};
}

}  // namespace

OperatorEntry activationEntry() {
  return {.name = "activation",
          .inputs = {{"input"}},
          .outputs = {{"output"}},
          .check = checkActivation,
          .gradient = activationGradient,
          .split = SplitRule::columns,
          .run = launch<activationOperation>};
}

OperatorEntry activationBackwardEntry() {
  return {.name = "activationBackward",
          .inputs = {{"gradOutput"}, {"input"}},
          .outputs = {{"gradInput"}},
          .check = checkActivationBackward,
          .run = launch<activationBackwardOperation>,
          .mayShare = [](const Node& node, int, int input) {
            return input == 0 && std::get<ActivationAttributes>(node.attributes).kind != ActivationKind::swiglu;
          }};
}

OperatorEntry dropoutEntry() {
  return {.name = "dropout",
          .inputs = {{"input"}, {"keys", optional}},
          .outputs = {{"output"}},
          .check = checkDropout,
          .gradient = dropoutGradient,
          .run = launch<dropoutOperation>,
          .mayShare = [](const Node&, int, int input) { return input == 0; }};
}

OperatorEntry addEntry() {
  return {.name = "add",
          .inputs = {{"left"}, {"right"}},
          .outputs = {{"output"}},
          .check = checkAdd,
          .gradient = addGradient,
          .split = SplitRule::rows,
          .run = launch<addOperation>,
          .mayShare = [](const Node&, int, int) { return true; }};
}

}  // namespace tandem::graph::detail
