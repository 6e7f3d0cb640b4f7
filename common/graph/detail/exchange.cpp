// Registry entries: exchanges of activations between ranks. The gradient of each is its dual: what was gathered is
// summed and dealt out, what was sent comes back.

#include <numeric>

#include "common/graph/detail/operator_entry.h"

namespace tandem::graph::detail {
namespace {

// `part` is this rank's rows of `whole`.
void checkRows(const Checker& checker, const CheckedOperand& part, const CheckedOperand& whole) {
  const auto& attributes = checker.attributes<ExchangeAttributes>();
  const auto rank = static_cast<std::size_t>(attributes.rank);
  checker.expect(attributes.rank >= 0 && rank < attributes.rows.size(), "this rank is none of the group");
  const std::int64_t rows = std::accumulate(attributes.rows.begin(), attributes.rows.end(), std::int64_t{0});
  checker.expect(rows > 0 && whole.shape().count() % rows == 0, whole, std::to_string(rows) + " rows of one length");
  checker.expectCount(part, whole.type(), whole.shape().count() / rows * attributes.rows[rank], "this rank's rows");
}

void checkGather(const Checker& checker) { checkRows(checker, checker.input(0), checker.output(0)); }
void checkScatter(const Checker& checker) { checkRows(checker, checker.output(0), checker.input(0)); }

void exchangeGradient(GradientBuilder& builder, std::size_t index, Operator dual) {
  const Node node = builder.node(index);
  const TensorId gradient = builder.makeGradient(node.inputs[0]);
  builder.append(dual, {builder.reached(node.outputs[0])}, {gradient}, node.attributes);
  builder.give(node.inputs[0], gradient);
}

void gatherGradient(GradientBuilder& builder, std::size_t index) {
  exchangeGradient(builder, index, Operator::scatterRows);
}
void scatterGradient(GradientBuilder& builder, std::size_t index) {
  exchangeGradient(builder, index, Operator::gatherRows);
}

void checkMessage(const Checker& checker) {
  checker.expect(checker.attributes<MessageAttributes>().peer >= 0, "the other stage cannot be negative");
}

MessageAttributes backwards(const Node& node) {
  MessageAttributes attributes = std::get<MessageAttributes>(node.attributes);
  attributes.isForward = false;
  return attributes;
}

void sendGradient(GradientBuilder& builder, std::size_t index) {
  const Node node = builder.node(index);
  const TensorId gradient = builder.makeGradient(node.inputs[0]);
  builder.append(Operator::receive, {}, {gradient}, backwards(node));
  builder.give(node.inputs[0], gradient);
}

void receiveGradient(GradientBuilder& builder, std::size_t index) {
  const Node node = builder.node(index);
  builder.append(Operator::send, {builder.reached(node.outputs[0])}, {}, backwards(node));
}

}  // namespace

OperatorEntry gatherRowsEntry() {
  return {.name = "gatherRows",
          .inputs = {{"input"}},
          .outputs = {{"output"}},
          .check = checkGather,
          .gradient = gatherGradient};
}

OperatorEntry scatterRowsEntry() {
  return {.name = "scatterRows",
          .inputs = {{"input"}},
          .outputs = {{"output"}},
          .check = checkScatter,
          .gradient = scatterGradient};
}

OperatorEntry sendEntry() {
  return {.name = "send",
          .inputs = {{"input"}},
          .outputs = {},
          .check = checkMessage,
          .gradient = sendGradient,
          .split = SplitRule::message};
}

OperatorEntry receiveEntry() {
  return {.name = "receive",
          .inputs = {},
          .outputs = {{"output"}},
          .check = checkMessage,
          .gradient = receiveGradient,
          .split = SplitRule::message};
}

}  // namespace tandem::graph::detail
