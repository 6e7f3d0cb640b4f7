// Registry entries: embedding.

#include "common/graph/detail/operator_entry.h"

namespace tandem::graph::detail {
namespace {

void checkEmbedding(const Checker& checker) {
  const CheckedOperand tokens = checker.input(0), weight = checker.input(1), positions = checker.input(2);
  const CheckedOperand positionWeight = checker.input(3), output = checker.output(0);
  checker.expectType(tokens, DType::i32);
  checker.expectStorage(weight);
  checker.expect(weight.shape().rank() == 2, weight, "[vocabulary, width]");
  checker.expectTogether(positions, positionWeight);
  if (positions) {
    const std::int64_t width = weight.shape()[1];
    checker.expectSame(positions, tokens);
    checker.expect(positionWeight.type() == weight.type() && positionWeight.shape().rank() == 2 &&
                       positionWeight.shape()[1] == width,
                   positionWeight, "[positions, " + std::to_string(width) + "] of the weight's type");
  }
  Shape expected = tokens.shape();
  expected.append(weight.shape()[1]);
  checker.expectShape(output, weight.type(), expected);
}

void checkEmbeddingBackward(const Checker& checker) {
  const CheckedOperand tokens = checker.input(0), positions = checker.input(1), gradOutput = checker.input(2);
  const CheckedOperand gradWeight = checker.output(0), gradPositionWeight = checker.output(1);
  checker.expectType(tokens, DType::i32);
  checker.expectTogether(positions, gradPositionWeight);
  if (positions) checker.expectSame(positions, tokens);
  checker.expectStorage(gradOutput);
  checker.expect(gradOutput.shape().rows() == tokens.shape().count(), gradOutput, "one row a token");
  for (const CheckedOperand& gradient : {gradWeight, gradPositionWeight}) {
    if (!gradient) continue;
    checker.expect(gradient.type() == DType::f32 && gradient.shape().rank() == 2 &&
                       gradient.shape()[1] == gradOutput.shape().last(),
                   gradient,
                   "float32 [.., " + std::to_string(gradOutput.shape().last()) + "], the width of gradOutput");
  }
}

void embeddingGradient(GradientBuilder& builder, std::size_t index) {
  const Node node = builder.node(index);
  builder.append(Operator::embeddingBackward, {node.inputs[0], node.inputs[2], builder.reached(node.outputs[0])},
                 {builder.ofParameter(node.inputs[1]), builder.ofParameter(node.inputs[3])}, node.attributes);
}

// Only the rows of the tokens are read: at most as many as there are tokens.
double untouchedRows(const Tensor& table, std::int64_t tokens) {
  const std::int64_t untouched = table.shape[0] - tokens;
  return untouched > 0 ? static_cast<double>(untouched * table.shape[1] * base::byteSize(table.type)) : 0;
}

double untouchedByEmbedding(const Program& program, const Node& node) {
  const std::int64_t tokens = inputOf(program, node, 0).shape.count();
  double bytes = untouchedRows(inputOf(program, node, 1), tokens);
  if (hasInput(node, 3)) bytes += untouchedRows(inputOf(program, node, 3), tokens);
  return bytes;
}

kernels::Embedding embeddingOperation(const Call& call) {
  return {.tokens = call.input(0),
          .positions = call.input(2),
          .weight = call.input(1),
          .positionWeight = call.input(3),
          .output = call.output(0),
          .part = call.attributes<EmbeddingAttributes>().part};
}

kernels::EmbeddingBackward embeddingBackwardOperation(const Call& call) {
  return {.tokens = call.input(0),
          .positions = call.input(1),
          .gradOutput = call.input(2),
          .gradWeight = call.output(0),
          .gradPositionWeight = call.output(1),
          .accumulateWeight = call.accumulate(0),
          .accumulatePositionWeight = call.accumulate(1),
          .part = call.attributes<EmbeddingAttributes>().part};
}

}  // namespace

OperatorEntry embeddingEntry() {
  return {.name = "embedding",
          .inputs = {{"tokens"}, {"weight"}, {"positions", optional}, {"positionWeight", optional}},
          .outputs = {{"output"}},
          .check = checkEmbedding,
          .gradient = embeddingGradient,
          .untouchedBytes = untouchedByEmbedding,
          .split = SplitRule::table,
          .run = launch<embeddingOperation>};
}

OperatorEntry embeddingBackwardEntry() {
  return {.name = "embeddingBackward",
          .inputs = {{"tokens"}, {"positions", optional}, {"gradOutput"}},
          .outputs = {{"gradWeight"}, {"gradPositionWeight", optional}},
          .check = checkEmbeddingBackward,
          .run = launch<embeddingBackwardOperation>};
}

}  // namespace tandem::graph::detail
