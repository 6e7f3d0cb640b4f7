#include "common/sharding/context.h"

#include "common/base/error.h"

namespace tandem::sharding {
namespace {

using graph::Node;
using graph::Operator;
using graph::Program;
using graph::Role;
using graph::Shape;
using graph::TensorId;

// An attention over a row becomes one over pieces, with room for what comes round.
void makeRing(Program& program, Node& node, int rank, int ranks) {
  const graph::AttentionAttributes attention = std::get<graph::AttentionAttributes>(node.attributes);
  const graph::Tensor qkv = program.tensor(node.inputs[0]), output = program.tensor(node.outputs[0]);
  const std::int64_t batch = qkv.shape[0], piece = qkv.shape[1] / 2, heads = attention.layout.heads;
  program.tensor(node.inputs[1]).shape = {2, batch, piece};
  program.tensor(node.outputs[1]).shape = {2, batch, heads, piece};
  const auto room = [&](const char* name, const Shape& shape, graph::DType type) {
    return program.addTensor(output.name + name, shape, type, Role::activation);
  };
  node.op = Operator::ringAttention;
  node.attributes = graph::RingAttributes{.attention = attention, .rank = rank, .ranks = ranks};
  node.outputs.push_back(room(".keys_around", {2, batch, qkv.shape[1], qkv.shape[2]}, qkv.type));
  node.outputs.push_back(room(".partial", {batch, piece, heads, attention.layout.headSize}, qkv.type));
  node.outputs.push_back(room(".partial_log_sum_exp", {batch, heads, piece}, graph::DType::f32));
  node.addsToOutput.assign(node.outputs.size(), false);
}

}  // namespace

std::array<Range, 2> contextPieces(std::int64_t rowLength, int rank, int ranks) {
  TANDEM_ASSERT(rowLength % (2 * std::int64_t{ranks}) == 0, "a row is cut into equal pieces");
  const std::int64_t piece = rowLength / (2 * ranks);
  return {Range{rank * piece, piece}, Range{(2 * std::int64_t{ranks} - 1 - rank) * piece, piece}};
}

Program splitOverContextRanks(const Program& forward, int rank, int ranks) {
  if (ranks == 1) return forward;
  Program result = forward;
  for (std::size_t index = 0; index < result.nodes().size(); ++index) {
    if (result.nodes()[index].op != Operator::attention) continue;
    Node node = result.nodes()[index];
    makeRing(result, node, rank, ranks);
    result.nodes()[index] = std::move(node);
  }
  return result;
}

}  // namespace tandem::sharding
