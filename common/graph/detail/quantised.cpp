// Registry entries: operators on quantised matrices. They have no gradients: the pass that places them beside frozen
// weights (passes.h) runs after differentiation.

#include <algorithm>

#include "common/graph/detail/operator_entry.h"

namespace tandem::graph::detail {
namespace {

constexpr int codes = 1, scales = 2;  // of a linear and an embedding

void expectMatrix(const Checker& checker, const CheckedOperand& codesOperand, const CheckedOperand& scalesOperand) {
  const auto& matrix = checker.attributes<QuantisedAttributes>();
  checker.expect(matrix.outputs > 0 && matrix.inputs > 0, "its matrix is empty");
  checker.expectShape(codesOperand, DType::u8, kernels::codesInMemory(matrix.format, matrix.outputs, matrix.inputs));
  checker.expectShape(scalesOperand, kernels::scalesType(matrix.format),
                      kernels::scalesInMemory(matrix.format, matrix.outputs, matrix.inputs));
}

void checkQuantisedLinear(const Checker& checker) {
  const CheckedOperand input = checker.input(0), bias = checker.input(3), output = checker.output(0);
  const auto& matrix = checker.attributes<QuantisedAttributes>();
  expectMatrix(checker, checker.input(codes), checker.input(scales));
  checker.expectStorage(input);
  checker.expect(input.shape().rank() >= 2 && input.shape().last() == matrix.inputs, input,
                 "[.., " + std::to_string(matrix.inputs) + "], with rows in front");
  checker.expectShape(bias, input.type(), {matrix.outputs});
  Shape expected = input.shape();
  expected[expected.rank() - 1] = matrix.outputs;
  checker.expectShape(output, input.type(), expected);
  checker.expect(matrix.activation != kernels::ActivationKind::swiglu, "SwiGLU cannot be the epilogue of a linear");
}

void checkQuantisedEmbedding(const Checker& checker) {
  const CheckedOperand tokens = checker.input(0), positions = checker.input(3), positionWeight = checker.input(4);
  const CheckedOperand output = checker.output(0);
  const auto& matrix = checker.attributes<QuantisedAttributes>();
  expectMatrix(checker, checker.input(codes), checker.input(scales));
  checker.expectType(tokens, DType::i32);
  checker.expectTogether(positions, positionWeight);
  checker.expectStorage(output);
  if (positions) {
    checker.expectSame(positions, tokens);
    checker.expect(positionWeight.type() == output.type() && positionWeight.shape().rank() == 2 &&
                       positionWeight.shape()[1] == matrix.inputs,
                   positionWeight, "[positions, " + std::to_string(matrix.inputs) + "] of the output's type");
  }
  Shape expected = tokens.shape();
  expected.append(matrix.inputs);
  checker.expectShape(output, output.type(), expected);
}

void checkDequantise(const Checker& checker) {
  const auto& matrix = checker.attributes<QuantisedAttributes>();
  expectMatrix(checker, checker.input(0), checker.input(1));
  checker.expectStorage(checker.output(0));
  checker.expectShape(checker.output(0), checker.output(0).type(), {matrix.outputs, matrix.inputs});
}

double quantisedLinearFlops(const Program& program, const Node& node) {
  const auto& matrix = std::get<QuantisedAttributes>(node.attributes);
  return 2.0 * static_cast<double>(inputOf(program, node, 0).shape.rows()) * static_cast<double>(matrix.outputs) *
         static_cast<double>(matrix.inputs);
}

// Only the rows of the tokens are read: at most as many as there are tokens.
double untouchedByEmbedding(const Program& program, const Node& node) {
  const auto& matrix = std::get<QuantisedAttributes>(node.attributes);
  const std::int64_t tokens = inputOf(program, node, 0).shape.count();
  const auto share =
      static_cast<double>(matrix.outputs - std::min(tokens, matrix.outputs)) / static_cast<double>(matrix.outputs);
  double bytes =
      share * static_cast<double>(bytesOf(inputOf(program, node, codes)) + bytesOf(inputOf(program, node, scales)));
  if (hasInput(node, 4)) {
    const Tensor& table = inputOf(program, node, 4);
    const std::int64_t rows = table.shape[0];
    bytes += static_cast<double>(bytesOf(table)) * static_cast<double>(rows - std::min(tokens, rows)) /
             static_cast<double>(rows);
  }
  return bytes;
}

kernels::QuantisedMatrix matrixOf(const Call& call, int codesIndex) {
  const auto& matrix = call.attributes<QuantisedAttributes>();
  return {.format = matrix.format,
          .outputs = matrix.outputs,
          .inputs = matrix.inputs,
          .codes = call.input(codesIndex),
          .scales = call.input(codesIndex + 1)};
}

kernels::QuantisedLinear quantisedLinearOperation(const Call& call) {
  return {.input = call.inputRows(0),
          .weight = matrixOf(call, codes),
          .bias = call.input(3),
          .activation = call.attributes<QuantisedAttributes>().activation,
          .output = call.outputRows(0)};
}

kernels::QuantisedEmbedding quantisedEmbeddingOperation(const Call& call) {
  return {.tokens = call.input(0),
          .positions = call.input(3),
          .weight = matrixOf(call, codes),
          .positionWeight = call.input(4),
          .output = call.output(0)};
}

kernels::Dequantise dequantiseOperation(const Call& call) {
  return {.matrix = matrixOf(call, 0), .output = call.output(0)};
}

}  // namespace

OperatorEntry quantisedLinearEntry() {
  return {.name = "quantisedLinear",
          .inputs = {{"input"}, {"codes"}, {"scales"}, {"bias", optional}},
          .outputs = {{"output"}},
          .check = checkQuantisedLinear,
          .flops = quantisedLinearFlops,
          .run = launch<quantisedLinearOperation>};
}

OperatorEntry quantisedEmbeddingEntry() {
  return {.name = "quantisedEmbedding",
          .inputs = {{"tokens"}, {"codes"}, {"scales"}, {"positions", optional}, {"positionWeight", optional}},
          .outputs = {{"output"}},
          .check = checkQuantisedEmbedding,
          .untouchedBytes = untouchedByEmbedding,
          .run = launch<quantisedEmbeddingOperation>};
}

OperatorEntry dequantiseEntry() {
  return {.name = "dequantise",
          .inputs = {{"codes"}, {"scales"}},
          .outputs = {{"output"}},
          .check = checkDequantise,
          .run = launch<dequantiseOperation>};
}

}  // namespace tandem::graph::detail
