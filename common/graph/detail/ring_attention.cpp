// Registry entries: attention over rows that are cut into pieces, two of them on each rank of the context group. Keys
// and values go round the ring of these ranks; what is beside the results is room for them.

#include "common/graph/detail/operator_entry.h"

namespace tandem::graph::detail {
namespace {

// Of a fused projection [batch, pieces, width].
struct Extents {
  std::int64_t batch, time, piece, width;
};

Extents expectFusedPieces(const Checker& checker, const CheckedOperand& qkv) {
  const auto& ring = checker.attributes<RingAttributes>();
  checker.expect(ring.ranks > 1 && ring.rank >= 0 && ring.rank < ring.ranks, "this rank is none of a ring");
  checker.expectStorage(qkv);
  checker.expect(qkv.shape().rank() == 3 && qkv.shape()[2] == ring.attention.layout.width() && qkv.shape()[1] % 2 == 0,
                 qkv, "[batch, two pieces, " + std::to_string(ring.attention.layout.width()) + "]");
  return {qkv.shape()[0], qkv.shape()[1], qkv.shape()[1] / 2, qkv.shape()[2]};
}

void expectStatistics(const Checker& checker, const CheckedOperand& documentStart, const CheckedOperand& logSumExp,
                      const Extents& e) {
  const std::int64_t heads = checker.attributes<RingAttributes>().attention.layout.heads;
  checker.expectShape(documentStart, DType::i32, {2, e.batch, e.piece});
  checker.expectShape(logSumExp, DType::f32, {2, e.batch, heads, e.piece});
}

void expectOutput(const Checker& checker, const CheckedOperand& output, const CheckedOperand& qkv, const Extents& e) {
  const auto& layout = checker.attributes<RingAttributes>().attention.layout;
  checker.expectShape(output, qkv.type(), {e.batch, e.time, layout.heads * layout.headSize});
}

void checkRing(const Checker& checker) {
  const CheckedOperand qkv = checker.input(0);
  const auto& layout = checker.attributes<RingAttributes>().attention.layout;
  const Extents e = expectFusedPieces(checker, qkv);
  expectOutput(checker, checker.output(0), qkv, e);
  expectStatistics(checker, checker.input(1), checker.output(1), e);
  checker.expectShape(checker.output(2), qkv.type(), {2, e.batch, e.time, e.width});
  checker.expectShape(checker.output(3), qkv.type(), {e.batch, e.piece, layout.heads, layout.headSize});
  checker.expectShape(checker.output(4), DType::f32, {e.batch, layout.heads, e.piece});
}

void checkRingBackward(const Checker& checker) {
  const CheckedOperand qkv = checker.input(0), output = checker.input(2);
  const Extents e = expectFusedPieces(checker, qkv);
  expectOutput(checker, output, qkv, e);
  expectStatistics(checker, checker.input(1), checker.input(3), e);
  checker.expectSame(checker.input(4), output);
  checker.expectSame(checker.output(0), qkv);
  checker.expectShape(checker.output(1), qkv.type(), {2, e.batch, e.time, e.width});
  checker.expectShape(checker.output(2), qkv.type(), {2, e.batch, e.time, e.width});
  checker.expectShape(checker.output(3), qkv.type(), {2, e.batch, e.piece, e.width});
}

void ringGradient(GradientBuilder& builder, std::size_t index) {
  const Node node = builder.node(index);
  const Tensor qkv = builder.tensor(node.inputs[0]);
  const TensorId gradQkv = builder.makeGradient(node.inputs[0]);
  const auto room = [&](const char* name, std::int64_t rows) {
    const Shape shape{2, qkv.shape[0], rows, qkv.shape[2]};
    return builder.makeTensor(builder.tensor(gradQkv).name + name, shape, qkv.type, Role::activation);
  };
  const TensorId keys = room(".keys_around", qkv.shape[1]), gradients = room(".gradients_around", qkv.shape[1]);
  const TensorId pair = room(".pair", qkv.shape[1] / 2);
  builder.append(Operator::ringAttentionBackward,
                 {node.inputs[0], node.inputs[1], node.outputs[0], node.outputs[1], builder.reached(node.outputs[0])},
                 {gradQkv, keys, gradients, pair}, node.attributes);
  builder.give(node.inputs[0], gradQkv);
}

// This rank's share of the scores and weighted values, the causal half counted too as is the custom for MFU.
double ringFlops(const Program& program, const Node& node) {
  const auto& ring = std::get<RingAttributes>(node.attributes);
  const Shape& qkv = inputOf(program, node, 0).shape;
  const std::int64_t row = qkv[1] * ring.ranks;
  const std::int64_t seen = ring.attention.window > 0 ? std::min(ring.attention.window, row) : row;
  const auto headWidth = static_cast<double>(ring.attention.layout.heads * ring.attention.layout.headSize);
  return 4.0 * static_cast<double>(qkv.rows()) * static_cast<double>(seen) * headWidth;
}

double ringBackwardFlops(const Program& program, const Node& node) { return 2 * ringFlops(program, node); }

}  // namespace

OperatorEntry ringAttentionEntry() {
  return {.name = "ringAttention",
          .inputs = {{"qkv"}, {"documentStart"}},
          .outputs = {{"output"}, {"logSumExp"}, {"keysAround"}, {"partialOutput"}, {"partialLogSumExp"}},
          .check = checkRing,
          .gradient = ringGradient,
          .flops = ringFlops,
          .split = SplitRule::heads};
}

OperatorEntry ringAttentionBackwardEntry() {
  return {.name = "ringAttentionBackward",
          .inputs = {{"qkv"}, {"documentStart"}, {"output"}, {"logSumExp"}, {"gradOutput"}},
          .outputs = {{"gradQkv"}, {"keysAround"}, {"gradientsAround"}, {"pair"}},
          .check = checkRingBackward,
          .flops = ringBackwardFlops};
}

}  // namespace tandem::graph::detail
