// Registry entries: norm, alone or with the residual add in front of it.

#include "common/graph/detail/operator_entry.h"

namespace tandem::graph::detail {
namespace {

using kernels::NormKind;

void checkNorm(const Checker& checker) {
  const CheckedOperand input = checker.input(0), residual = checker.input(1), weight = checker.input(2);
  const CheckedOperand bias = checker.input(3), sum = checker.output(0), output = checker.output(1);
  const CheckedOperand mean = checker.output(2), reciprocal = checker.output(3);
  const NormKind kind = checker.attributes<NormAttributes>().kind;
  const std::int64_t rows = input.shape().rows(), width = input.shape().last();
  checker.expectStorage(input);
  checker.expectTogether(residual, sum);
  if (residual) {
    checker.expectSame(residual, input);
    checker.expectSame(sum, input);
  }
  checker.expectShape(weight, input.type(), {width});
  checker.expectShape(bias, input.type(), {width});
  checker.expectSame(output, input);
  checker.expect(static_cast<bool>(mean) == (kind == NormKind::layer), "mean is given for a layer norm and only there");
  if (mean) checker.expectCount(mean, DType::f32, rows, "one a row");
  checker.expectCount(reciprocal, DType::f32, rows, "one a row");
}

void checkNormBackward(const Checker& checker) {
  const CheckedOperand gradOutput = checker.input(0), gradSum = checker.input(1), input = checker.input(2);
  const CheckedOperand weight = checker.input(3), mean = checker.input(4), reciprocal = checker.input(5);
  const CheckedOperand gradInput = checker.output(0), gradWeight = checker.output(1), gradBias = checker.output(2);
  const NormKind kind = checker.attributes<NormAttributes>().kind;
  const std::int64_t rows = input.shape().rows(), width = input.shape().last();
  checker.expectStorage(input);
  checker.expectSame(gradOutput, input);
  if (gradSum) checker.expectSame(gradSum, input);
  checker.expectShape(weight, input.type(), {width});
  checker.expect(static_cast<bool>(mean) == (kind == NormKind::layer), "mean is given for a layer norm and only there");
  if (mean) checker.expectCount(mean, DType::f32, rows, "one a row");
  checker.expectCount(reciprocal, DType::f32, rows, "one a row");
  checker.expectSame(gradInput, input);
  checker.expectShape(gradWeight, DType::f32, {width});
  checker.expectShape(gradBias, DType::f32, {width});
  checker.expect(!gradBias || checker.node().addsToOutput[1] == checker.node().addsToOutput[2],
                 "nodes that share a weight must share the bias too");
}

// What reaches the normalised tensor by other paths is added by the same kernel, with or without a residual.
void normGradient(GradientBuilder& builder, std::size_t index) {
  const Node node = builder.node(index);
  const TensorId input = node.inputs[0], residual = node.inputs[1];
  const TensorId normalised = residual == none ? input : node.outputs[0];
  const TensorId gradOutput = builder.reached(node.outputs[1]);
  TensorId gradient = builder.reached(normalised);
  if (gradOutput != none) {
    const TensorId gradSum = gradient;
    gradient = builder.makeGradient(normalised);
    builder.append(
        Operator::normBackward, {gradOutput, gradSum, normalised, node.inputs[2], node.outputs[2], node.outputs[3]},
        {gradient, builder.ofWeight(node.inputs[2]), builder.ofParameter(node.inputs[3])}, node.attributes);
    builder.replace(normalised, gradient);
  }
  if (residual == none) return;
  builder.give(input, gradient);
  builder.give(residual, gradient);
}

kernels::Norm normOperation(const Call& call) {
  return {.kind = call.attributes<NormAttributes>().kind,
          .epsilon = call.attributes<NormAttributes>().epsilon,
          .input = call.inputRows(0),
          .residual = call.inputRows(1),
          .weight = call.input(2),
          .bias = call.input(3),
          .sum = call.outputRows(0),
          .output = call.outputRows(1),
          .mean = call.outputFlat(2),
          .reciprocal = call.outputFlat(3)};
}

kernels::NormBackward normBackwardOperation(const Call& call) {
  return {.kind = call.attributes<NormAttributes>().kind,
          .gradOutput = call.inputRows(0),
          .gradSum = call.inputRows(1),
          .input = call.inputRows(2),
          .weight = call.input(3),
          .mean = call.inputFlat(4),
          .reciprocal = call.inputFlat(5),
          .gradInput = call.outputRows(0),
          .gradWeight = call.output(1),
          .gradBias = call.output(2),
          .accumulate = call.accumulate(1)};
}

}  // namespace

OperatorEntry normEntry() {
  return {.name = "norm",
          .inputs = {{"input"}, {"residual", optional}, {"weight"}, {"bias", optional}},
          .outputs = {{"sum", optional}, {"output"}, {"mean", optional}, {"reciprocal"}},
          .check = checkNorm,
          .gradient = normGradient,
          .split = SplitRule::rows,
          .run = launch<normOperation>,
          .mayShare = [](const Node&, int output, int input) { return output == 0 && (input == 0 || input == 1); }};
}

OperatorEntry normBackwardEntry() {
  return {.name = "normBackward",
          .inputs = {{"gradOutput"}, {"gradSum", optional}, {"input"}, {"weight"}, {"mean", optional}, {"reciprocal"}},
          .outputs = {{"gradInput"}, {"gradWeight"}, {"gradBias", optional}},
          .check = checkNormBackward,
          .run = launch<normBackwardOperation>,
          .mayShare = [](const Node&, int output, int input) { return output == 0 && input == 1; }};
}

}  // namespace tandem::graph::detail
