// Registry entries: a matrix by the lengths of its rows and their directions.

#include "common/graph/detail/operator_entry.h"

namespace tandem::graph::detail {
namespace {

void checkRowNorms(const Checker& checker) {
  const CheckedOperand matrix = checker.input(0);
  checker.expectStorage(matrix);
  checker.expect(matrix.shape().rank() == 2, matrix, "a matrix");
  checker.expectSame(checker.input(1), matrix);
  for (const int output : {0, 1}) checker.expectShape(checker.output(output), DType::f32, {matrix.shape()[0]});
  (void)checker.attributes<RowNormsAttributes>();
}

// Nothing flows back: the norms follow the matrix, but are constants where it is learned (section 4.3 of the paper).
void rowNormsGradient(GradientBuilder&, std::size_t) {}

kernels::RowNorms rowNormsOperation(const Call& call) {
  return {.matrix = call.input(0),
          .change = call.input(1),
          .factor = call.attributes<RowNormsAttributes>().factor,
          .norms = call.output(0),
          .changedNorms = call.output(1)};
}

// Of `input` and what follows it among the inputs.
void expectColumns(const Checker& checker, int input) {
  const CheckedOperand rows = checker.input(input);
  const std::int64_t width = rows.shape().last();
  checker.expectStorage(rows);
  checker.expectShape(checker.input(input + 1), rows.type(), {width});
  checker.expectShape(checker.input(input + 2), DType::f32, {width});
  checker.expectShape(checker.input(input + 3), DType::f32, {width});
}

void checkRescale(const Checker& checker) {
  const CheckedOperand input = checker.input(0), bias = checker.input(4);
  expectColumns(checker, 0);
  checker.expectShape(bias, input.type(), {input.shape().last()});
  checker.expect(!bias || bias.tensor->role != Role::parameter, bias, "frozen: it gets no gradient here");
  checker.expectSame(checker.output(0), input);
}

void rescaleGradient(GradientBuilder& builder, std::size_t index) {
  const Node node = builder.node(index);
  const TensorId input = node.inputs[0], gain = node.inputs[1];
  const TensorId gradInput = builder.makeGradient(input);
  builder.append(Operator::rescaleBackward,
                 {builder.reached(node.outputs[0]), input, gain, node.inputs[2], node.inputs[3]},
                 {gradInput, builder.ofParameter(gain)});
  builder.give(input, gradInput);
}

kernels::Rescale rescaleOperation(const Call& call) {
  return {.input = call.inputRows(0),
          .gain = call.input(1),
          .norms = call.input(2),
          .changedNorms = call.input(3),
          .bias = call.input(4),
          .output = call.outputRows(0)};
}

void checkRescaleBackward(const Checker& checker) {
  const CheckedOperand gradOutput = checker.input(0);
  checker.expectSame(checker.input(1), gradOutput);
  expectColumns(checker, 1);
  checker.expectSame(checker.output(0), gradOutput);
  checker.expectShape(checker.output(1), DType::f32, {gradOutput.shape().last()});
}

kernels::RescaleBackward rescaleBackwardOperation(const Call& call) {
  return {.gradOutput = call.inputRows(0),
          .input = call.inputRows(1),
          .gain = call.input(2),
          .norms = call.input(3),
          .changedNorms = call.input(4),
          .gradInput = call.outputRows(0),
          .gradGain = call.output(1),
          .accumulate = call.accumulate(1)};
}

// A column's numbers are read before its elements are written.
bool sharesRows(const Node&, int output, int input) { return output == 0 && input == 0; }

}  // namespace

OperatorEntry rowNormsEntry() {
  return {.name = "rowNorms",
          .inputs = {{"matrix"}, {"change"}},
          .outputs = {{"norms"}, {"changedNorms"}},
          .check = checkRowNorms,
          .gradient = rowNormsGradient,
          .run = launch<rowNormsOperation>};
}

OperatorEntry rescaleEntry() {
  return {.name = "rescale",
          .inputs = {{"input"}, {"gain"}, {"norms"}, {"changedNorms"}, {"bias", optional}},
          .outputs = {{"output"}},
          .check = checkRescale,
          .gradient = rescaleGradient,
          .run = launch<rescaleOperation>,
          .mayShare = sharesRows};
}

OperatorEntry rescaleBackwardEntry() {
  return {.name = "rescaleBackward",
          .inputs = {{"gradOutput"}, {"input"}, {"gain"}, {"norms"}, {"changedNorms"}},
          .outputs = {{"gradInput"}, {"gradGain"}},
          .check = checkRescaleBackward,
          .run = launch<rescaleBackwardOperation>,
          .mayShare = sharesRows};
}

}  // namespace tandem::graph::detail
