// Registry entries: the projection with its cross entropy where each rank has a part of the vocabulary.

#include "common/graph/detail/operator_entry.h"

namespace tandem::graph::detail {
namespace {

void expectPart(const Checker& checker, const CheckedOperand& input, const CheckedOperand& weight) {
  checker.expectStorage(input);
  checker.expect(
      weight.type() == input.type() && weight.shape().rank() == 2 && weight.shape()[1] == input.shape().last(), weight,
      "[tokens, " + std::to_string(input.shape().last()) + "] of the input's type");
}

void checkPartial(const Checker& checker) {
  const CheckedOperand input = checker.input(0), partials = checker.output(0);
  const std::int64_t rows = input.shape().rows();
  expectPart(checker, input, checker.input(1));
  checker.expect(checker.attributes<PartialCrossEntropyAttributes>().firstToken >= 0, "a token cannot be negative");
  checker.expectCount(checker.input(2), DType::i32, rows, "one a row of the input");
  checker.expectShape(partials, DType::f32, {2, rows});
}

void checkMerge(const Checker& checker) {
  const CheckedOperand partials = checker.input(0), input = checker.input(2);
  const std::int64_t rows = input.shape().rows();
  expectPart(checker, input, checker.input(3));
  checker.expect(partials.type() == DType::f32 && partials.shape().rank() == 3 && partials.shape()[1] == 2 &&
                     partials.shape()[2] == rows,
                 partials, "float32 [parts, 2, " + std::to_string(rows) + "]");
  checker.expectCount(checker.input(1), DType::i32, rows, "one a row of the input");
  checker.expectCount(checker.output(0), DType::f32, rows, "one a row of the input");
  checker.expectCount(checker.output(1), DType::f32, rows, "one a row of the input");
  checker.expect(checker.attributes<PartialCrossEntropyAttributes>().firstToken >= 0, "a token cannot be negative");
}

void checkBackward(const Checker& checker) {
  const CheckedOperand input = checker.input(0), weight = checker.input(1);
  const std::int64_t rows = input.shape().rows();
  expectPart(checker, input, weight);
  checker.expectCount(checker.input(2), DType::i32, rows, "one a row of the input");
  checker.expectCount(checker.input(3), DType::f32, rows, "one a row of the input");
  checker.expectShape(checker.input(4), DType::f32, {1});
  checker.expectSame(checker.output(0), input);
  checker.expectShape(checker.output(1), DType::f32, weight.shape());
}

// The loss's own: nothing has reached it before.
void mergeGradient(GradientBuilder& builder, std::size_t index) {
  const Node node = builder.node(index);
  const TensorId input = node.inputs[2], weight = node.inputs[3];
  const TensorId gradScale = builder.makeTensor("gradScale", {1}, DType::f32, Role::input);
  const TensorId gradInput = builder.makeGradient(input);
  builder.append(Operator::partialCrossEntropyBackward, {input, weight, node.inputs[1], node.outputs[1], gradScale},
                 {gradInput, builder.ofParameter(weight)}, node.attributes);
  builder.give(input, gradInput);
}

double productFlops(const Program& program, const Node& node) {
  const Shape& weight = inputOf(program, node, 1).shape;
  return 2.0 * static_cast<double>(inputOf(program, node, 0).shape.rows()) * static_cast<double>(weight.count());
}

// That the logits are made again is not counted.
double backwardFlops(const Program& program, const Node& node) {
  return (hasOutput(node, 1) ? 2 : 1) * productFlops(program, node);
}

// Input and weight are not read.
double untouchedByMerge(const Program& program, const Node& node) {
  return static_cast<double>(bytesOf(inputOf(program, node, 2)) + bytesOf(inputOf(program, node, 3)));
}

kernels::PartialCrossEntropy partialOperation(const Call& call) {
  return {.input = call.inputRows(0),
          .weight = call.input(1),
          .targets = call.inputFlat(2),
          .firstToken = call.attributes<PartialCrossEntropyAttributes>().firstToken,
          .partials = call.output(0)};
}

kernels::MergeCrossEntropy mergeOperation(const Call& call) {
  return {.partials = call.input(0),
          .targets = call.inputFlat(1),
          .losses = call.outputFlat(0),
          .logSumExp = call.outputFlat(1)};
}

kernels::PartialCrossEntropyBackward backwardOperation(const Call& call) {
  return {.input = call.inputRows(0),
          .weight = call.input(1),
          .targets = call.inputFlat(2),
          .firstToken = call.attributes<PartialCrossEntropyAttributes>().firstToken,
          .logSumExp = call.inputFlat(3),
          .gradScale = call.input(4),
          .gradInput = call.outputRows(0),
          .gradWeight = call.output(1),
          .accumulateWeight = call.accumulate(1)};
}

}  // namespace

OperatorEntry partialCrossEntropyEntry() {
  return {.name = "partialCrossEntropy",
          .inputs = {{"input"}, {"weight"}, {"targets"}},
          .outputs = {{"partials"}},
          .check = checkPartial,
          .flops = productFlops,
          .run = launch<partialOperation>};
}

OperatorEntry mergeCrossEntropyEntry() {
  return {.name = "mergeCrossEntropy",
          .inputs = {{"partials"}, {"targets"}, {"input"}, {"weight"}},
          .outputs = {{"losses"}, {"logSumExp"}},
          .check = checkMerge,
          .gradient = mergeGradient,
          .untouchedBytes = untouchedByMerge,
          .run = launch<mergeOperation>};
}

OperatorEntry partialCrossEntropyBackwardEntry() {
  return {.name = "partialCrossEntropyBackward",
          .inputs = {{"input"}, {"weight"}, {"targets"}, {"logSumExp"}, {"gradScale"}},
          .outputs = {{"gradInput"}, {"gradWeight", optional}},
          .check = checkBackward,
          .flops = backwardFlops,
          .run = launch<backwardOperation>};
}

}  // namespace tandem::graph::detail
