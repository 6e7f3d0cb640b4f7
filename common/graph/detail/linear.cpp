// Registry entries: linear with its epilogue, and the projection that ends in the cross entropy.

#include "common/graph/detail/operator_entry.h"

namespace tandem::graph::detail {
namespace {

using kernels::ActivationKind;

void expectMatrix(const Checker& checker, const CheckedOperand& weight, DType type, std::int64_t inputs) {
  checker.expect(weight.type() == type && weight.shape().rank() == 2 && weight.shape()[1] == inputs, weight,
                 std::string(base::name(type)) + " [outputs, " + std::to_string(inputs) + "]");
}

// The shape of `like` with another last extent.
Shape withLast(Shape like, std::int64_t last) {
  like[like.rank() - 1] = last;
  return like;
}

void checkLinear(const Checker& checker) {
  const CheckedOperand input = checker.input(0), weight = checker.input(1), bias = checker.input(2);
  const CheckedOperand preActivation = checker.output(0), output = checker.output(1);
  const ActivationKind activation = checker.attributes<LinearAttributes>().activation;
  checker.expectStorage(input);
  checker.expect(input.shape().rank() >= 2, input, "[.., inputs], with rows in front");
  expectMatrix(checker, weight, input.type(), input.shape().last());
  checker.expectShape(bias, input.type(), {weight.shape()[0]});
  checker.expectShape(output, input.type(), withLast(input.shape(), weight.shape()[0]));
  checker.expect(activation != ActivationKind::swiglu, "SwiGLU cannot be the epilogue of a linear");
  checker.expect(!preActivation || activation != ActivationKind::none, "preActivation is given without an activation");
  if (preActivation) checker.expectSame(preActivation, output);
}

void checkLinearBackwardInput(const Checker& checker) {
  const CheckedOperand gradOutput = checker.input(0), weight = checker.input(1), preActivation = checker.input(2);
  const CheckedOperand gradInput = checker.output(0);
  const ActivationKind activation = checker.attributes<LinearAttributes>().activation;
  checker.expectStorage(gradOutput);
  checker.expect(weight.type() == gradOutput.type() && weight.shape().rank() == 2 &&
                     weight.shape()[0] == gradOutput.shape().last(),
                 weight, "[" + std::to_string(gradOutput.shape().last()) + ", inputs] of gradOutput's type");
  checker.expectShape(gradInput, gradOutput.type(), withLast(gradOutput.shape(), weight.shape()[1]));
  checker.expect(activation != ActivationKind::swiglu, "SwiGLU cannot be fused into a linear's backward pass");
  checker.expect(static_cast<bool>(preActivation) == (activation != ActivationKind::none),
                 "preActivation is given with an activation and only there");
  if (preActivation) checker.expectSame(preActivation, gradInput);
}

void checkLinearBackwardWeight(const Checker& checker) {
  const CheckedOperand gradOutput = checker.input(0), input = checker.input(1);
  const CheckedOperand gradWeight = checker.output(0), gradBias = checker.output(1);
  checker.expectStorage(gradOutput);
  checker.expect(input.type() == gradOutput.type() && input.shape().rows() == gradOutput.shape().rows(), input,
                 "as many rows as gradOutput, of its type");
  checker.expectShape(gradWeight, DType::f32, {gradOutput.shape().last(), input.shape().last()});
  checker.expectShape(gradBias, DType::f32, {gradOutput.shape().last()});
  checker.expect(!gradBias || checker.node().addsToOutput[0] == checker.node().addsToOutput[1],
                 "nodes that share a weight must share the bias too");
}

// The pre-activation is kept only now that a backward pass needs it.
TensorId keepPreActivation(GradientBuilder& builder, std::size_t index) {
  const Node node = builder.node(index);
  if (node.outputs[0] != none) return node.outputs[0];
  const Tensor output = builder.tensor(node.outputs[1]);
  const TensorId kept = builder.makeTensor(output.name + ".preActivation", output.shape, output.type, Role::activation);
  builder.forwardNode(index).outputs[0] = kept;
  return kept;
}

// The weight's gradient comes first: the activation it reads is dead when the input's gradient needs its memory.
void linearGradient(GradientBuilder& builder, std::size_t index) {
  const Node node = builder.node(index);
  const ActivationKind activation = std::get<LinearAttributes>(node.attributes).activation;
  TensorId gradOutput = builder.reached(node.outputs[1]);
  if (activation != ActivationKind::none) {
    const TensorId preActivation = keepPreActivation(builder, index);
    const TensorId gradient = builder.makeGradient(preActivation);
    builder.append(Operator::activationBackward, {gradOutput, preActivation}, {gradient},
                   ActivationAttributes{activation});
    gradOutput = gradient;
  }
  const TensorId gradWeight = builder.ofParameter(node.inputs[1]);
  const TensorId gradBias = builder.ofParameter(node.inputs[2]);
  if (gradWeight != none || gradBias != none) {
    builder.append(Operator::linearBackwardWeight, {gradOutput, node.inputs[0]}, {gradWeight, gradBias});
  }
  if (!builder.wants(node.inputs[0])) return;
  const TensorId gradInput = builder.makeGradient(node.inputs[0]);
  builder.append(Operator::linearBackwardInput, {gradOutput, node.inputs[1], none}, {gradInput}, LinearAttributes{});
  builder.give(node.inputs[0], gradInput);
}

double product(std::int64_t rows, std::int64_t inputs, std::int64_t outputs) {
  return 2.0 * static_cast<double>(rows) * static_cast<double>(inputs) * static_cast<double>(outputs);
}

double linearFlops(const Program& program, const Node& node) {
  const Shape& weight = inputOf(program, node, 1).shape;
  return product(inputOf(program, node, 0).shape.rows(), weight[0], weight[1]);
}

double linearBackwardWeightFlops(const Program& program, const Node& node) {
  const Shape& gradOutput = inputOf(program, node, 0).shape;
  return product(gradOutput.rows(), gradOutput.last(), inputOf(program, node, 1).shape.last());
}

kernels::Linear linearOperation(const Call& call) {
  return {.input = call.inputRows(0),
          .weight = call.input(1),
          .bias = call.input(2),
          .activation = call.attributes<LinearAttributes>().activation,
          .preActivation = call.outputRows(0),
          .output = call.outputRows(1),
          .fp8 = call.fp8State()};
}

kernels::LinearBackwardInput linearBackwardInputOperation(const Call& call) {
  return {.gradOutput = call.inputRows(0),
          .weight = call.input(1),
          .activation = call.attributes<LinearAttributes>().activation,
          .preActivation = call.inputRows(2),
          .gradInput = call.outputRows(0),
          .fp8 = call.fp8State()};
}

kernels::LinearBackwardWeight linearBackwardWeightOperation(const Call& call) {
  return {.gradOutput = call.inputRows(0),
          .input = call.inputRows(1),
          .gradWeight = call.output(0),
          .gradBias = call.output(1),
          .accumulate = call.accumulate(0),
          .fp8 = call.fp8State()};
}

void checkCrossEntropy(const Checker& checker) {
  const CheckedOperand input = checker.input(0), weight = checker.input(1), targets = checker.input(2);
  const CheckedOperand gradScale = checker.input(3), losses = checker.output(0), gradInput = checker.output(1);
  const CheckedOperand gradWeight = checker.output(2);
  const std::int64_t rows = input.shape().rows();
  checker.expectStorage(input);
  expectMatrix(checker, weight, input.type(), input.shape().last());
  checker.expectCount(targets, DType::i32, rows, "one a row of the input");
  checker.expectCount(losses, DType::f32, rows, "one a row of the input");
  if (!gradScale || gradScale.shape().count() != rows) checker.expectShape(gradScale, DType::f32, {1});
  checker.expectTogether(gradScale, gradInput);
  if (gradInput) checker.expectSame(gradInput, input);
  checker.expect(!gradWeight || gradInput, "gradWeight is given without gradInput");
  checker.expectShape(gradWeight, DType::f32, weight.shape());
}

// The loss makes its gradients in its forward pass, while a chunk of logits exists.
void crossEntropyGradient(GradientBuilder& builder, std::size_t index) {
  Node node = builder.node(index);
  const TensorId input = node.inputs[0];
  node.inputs[3] = builder.makeTensor("gradScale", {1}, DType::f32, Role::input);
  node.outputs[1] = builder.makeGradient(input);
  node.outputs[2] = builder.ofParameter(node.inputs[1]);
  builder.markGradients(node);
  builder.forwardNode(index) = node;
  builder.give(input, node.outputs[1]);
}

double crossEntropyFlops(const Program& program, const Node& node) {
  const int products = 1 + (hasOutput(node, 1) ? 1 : 0) + (hasOutput(node, 2) ? 1 : 0);
  return products * linearFlops(program, node);
}

kernels::LinearCrossEntropy crossEntropyOperation(const Call& call) {
  return {.input = call.inputRows(0),
          .weight = call.input(1),
          .targets = call.inputFlat(2),
          .gradScale = call.input(3),
          .losses = call.outputFlat(0),
          .gradInput = call.outputRows(1),
          .gradWeight = call.output(2),
          .accumulateWeight = call.accumulate(2)};
}

}  // namespace

OperatorEntry linearEntry() {
  return {.name = "linear",
          .inputs = {{"input"}, {"weight"}, {"bias", optional}},
          .outputs = {{"preActivation", optional}, {"output"}},
          .check = checkLinear,
          .gradient = linearGradient,
          .flops = linearFlops,
          .split = SplitRule::product,
          .run = launch<linearOperation>};
}

OperatorEntry linearBackwardInputEntry() {
  return {.name = "linearBackwardInput",
          .inputs = {{"gradOutput"}, {"weight"}, {"preActivation", optional}},
          .outputs = {{"gradInput"}},
          .check = checkLinearBackwardInput,
          .flops = linearFlops,
          .run = launch<linearBackwardInputOperation>};
}

OperatorEntry linearBackwardWeightEntry() {
  return {.name = "linearBackwardWeight",
          .inputs = {{"gradOutput"}, {"input"}},
          .outputs = {{"gradWeight"}, {"gradBias", optional}},
          .check = checkLinearBackwardWeight,
          .flops = linearBackwardWeightFlops,
          .run = launch<linearBackwardWeightOperation>};
}

OperatorEntry linearCrossEntropyEntry() {
  return {.name = "linearCrossEntropy",
          .inputs = {{"input"}, {"weight"}, {"targets"}, {"gradScale", optional}},
          .outputs = {{"losses"}, {"gradInput", optional}, {"gradWeight", optional}},
          .check = checkCrossEntropy,
          .gradient = crossEntropyGradient,
          .flops = crossEntropyFlops,
          .split = SplitRule::vocabulary,
          .run = launch<crossEntropyOperation>};
}

}  // namespace tandem::graph::detail
