// Registry entries: rotary positions, attention over a batch, attention over a cache.
//
// All three take the fused projection [batch, time, (heads + 2 kvHeads) * headSize]; queries, keys and values are
// strided views into it, so that no copy splits them.

#include <algorithm>

#include "common/graph/detail/operator_entry.h"
#include "kernels/quantised_cache.h"

namespace tandem::graph::detail {
namespace {

using kernels::HeadLayout;
using kernels::TensorView;

// Heads [first, first + heads) of each row, as [batch, time, heads, headSize].
TensorView headsOf(const TensorView& rows, std::int64_t first, std::int64_t heads, std::int64_t headSize) {
  if (!rows) return rows;
  const std::int64_t offset = first * headSize * base::byteSize(rows.type);
  return {static_cast<std::byte*>(rows.data) + offset,
          rows.type,
          {rows.shape[0], rows.shape[1], heads, headSize},
          {rows.strides[0], rows.strides[1], headSize, 1}};
}

struct FusedViews {
  TensorView query, key, value;
};
FusedViews split(const TensorView& qkv, const HeadLayout& layout) {
  return {headsOf(qkv, 0, layout.heads, layout.headSize), headsOf(qkv, layout.heads, layout.kvHeads, layout.headSize),
          headsOf(qkv, layout.heads + layout.kvHeads, layout.kvHeads, layout.headSize)};
}

void expectLayout(const Checker& checker, const HeadLayout& layout) {
  checker.expect(layout.heads > 0 && layout.kvHeads > 0 && layout.headSize > 0,
                 "heads, kvHeads and headSize must be positive");
  checker.expect(layout.heads % layout.kvHeads == 0, std::to_string(layout.heads) +
                                                         " heads cannot be shared out evenly over " +
                                                         std::to_string(layout.kvHeads) + " key-value heads");
}

void expectFused(const Checker& checker, const CheckedOperand& qkv, const HeadLayout& layout) {
  checker.expectStorage(qkv);
  checker.expect(qkv.shape().rank() == 3 && qkv.shape()[2] == layout.width(), qkv,
                 "[batch, time, " + std::to_string(layout.width()) + "], (heads + 2 kvHeads) * headSize wide");
}

// --- rotary ----------------------------------------------------------------------------------------------------------

void expectRotary(const Checker& checker, const RotaryAttributes& attributes) {
  expectLayout(checker, attributes.layout);
  checker.expect(attributes.layout.headSize % 2 == 0,
                 "rotary positions need an even headSize, not " + std::to_string(attributes.layout.headSize));
  checker.expect(static_cast<std::int64_t>(attributes.frequencies.size()) * 2 == attributes.layout.headSize,
                 std::to_string(attributes.frequencies.size()) + " frequencies for a headSize of " +
                     std::to_string(attributes.layout.headSize) + "; it takes half as many");
}

void checkRotary(const Checker& checker) {
  const CheckedOperand input = checker.input(0), positions = checker.input(1), queryWeight = checker.input(2);
  const CheckedOperand keyWeight = checker.input(3), output = checker.output(0), reciprocal = checker.output(1);
  const auto& attributes = checker.attributes<RotaryAttributes>();
  const HeadLayout& layout = attributes.layout;
  expectRotary(checker, attributes);
  expectFused(checker, input, layout);
  checker.expectSame(output, input);
  checker.expectCount(positions, DType::i32, input.shape().rows(), "one a row");
  checker.expectTogether(queryWeight, keyWeight);
  checker.expectTogether(queryWeight, reciprocal);
  checker.expectShape(queryWeight, input.type(), {layout.headSize});
  checker.expectShape(keyWeight, input.type(), {layout.headSize});
  if (reciprocal) {
    checker.expectCount(reciprocal, DType::f32, input.shape().rows() * (layout.heads + layout.kvHeads),
                        "one a row and head of queries and keys");
  }
}

void checkRotaryBackward(const Checker& checker) {
  const CheckedOperand gradOutput = checker.input(0), positions = checker.input(1), input = checker.input(2);
  const CheckedOperand queryWeight = checker.input(3), keyWeight = checker.input(4), reciprocal = checker.input(5);
  const CheckedOperand gradInput = checker.output(0), gradQueryWeight = checker.output(1);
  const CheckedOperand gradKeyWeight = checker.output(2);
  const auto& attributes = checker.attributes<RotaryAttributes>();
  const HeadLayout& layout = attributes.layout;
  expectRotary(checker, attributes);
  expectFused(checker, gradOutput, layout);
  checker.expectSame(gradInput, gradOutput);
  checker.expectCount(positions, DType::i32, gradOutput.shape().rows(), "one a row");
  for (const CheckedOperand& other : {queryWeight, keyWeight, reciprocal, gradQueryWeight, gradKeyWeight}) {
    checker.expectTogether(input, other);
  }
  if (!input) return;
  checker.expectSame(input, gradOutput);
  checker.expectShape(queryWeight, input.type(), {layout.headSize});
  checker.expectShape(keyWeight, input.type(), {layout.headSize});
  checker.expectCount(reciprocal, DType::f32, input.shape().rows() * (layout.heads + layout.kvHeads),
                      "one a row and head of queries and keys");
  checker.expectShape(gradQueryWeight, DType::f32, {layout.headSize});
  checker.expectShape(gradKeyWeight, DType::f32, {layout.headSize});
  checker.expect(checker.node().addsToOutput[1] == checker.node().addsToOutput[2],
                 "nodes that share a query weight must share the key weight too");
}

// Without QK-norm the rotation is linear: its input is not needed.
void rotaryGradient(GradientBuilder& builder, std::size_t index) {
  const Node node = builder.node(index);
  const bool normalised = hasInput(node, 2);
  const TensorId gradInput = builder.makeGradient(node.inputs[0]);
  builder.append(Operator::rotaryBackward,
                 {builder.reached(node.outputs[0]), node.inputs[1], normalised ? node.inputs[0] : none, node.inputs[2],
                  node.inputs[3], node.outputs[1]},
                 {gradInput, builder.ofWeight(node.inputs[2]), builder.ofWeight(node.inputs[3])},
                 node.attributes);
  builder.give(node.inputs[0], gradInput);
}

// The frequencies stay in the host's memory: they are few, and a device takes them as arguments of its kernel.
kernels::ConstTensorView frequenciesOf(const RotaryAttributes& attributes) {
  return {attributes.frequencies.data(), DType::f32, {static_cast<std::int64_t>(attributes.frequencies.size())}};
}

// One value a row and head of queries and keys.
TensorView reciprocalOf(const TensorView& view, const TensorView& rows, const HeadLayout& layout) {
  return view ? TensorView(view.data, DType::f32, {rows.shape[0], layout.heads + layout.kvHeads}) : view;
}

kernels::Rotary rotaryOperation(const Call& call) {
  const auto& attributes = call.attributes<RotaryAttributes>();
  return {.layout = attributes.layout,
          .input = call.inputRows(0),
          .positions = call.inputFlat(1),
          .frequencies = frequenciesOf(attributes),
          .queryWeight = call.input(2),
          .keyWeight = call.input(3),
          .epsilon = attributes.epsilon,
          .output = call.outputRows(0),
          .reciprocal = reciprocalOf(call.output(1), call.inputRows(0), attributes.layout)};
}

kernels::RotaryBackward rotaryBackwardOperation(const Call& call) {
  const auto& attributes = call.attributes<RotaryAttributes>();
  return {.layout = attributes.layout,
          .gradOutput = call.inputRows(0),
          .positions = call.inputFlat(1),
          .frequencies = frequenciesOf(attributes),
          .input = call.inputRows(2),
          .queryWeight = call.input(3),
          .keyWeight = call.input(4),
          .reciprocal = reciprocalOf(call.input(5), call.inputRows(0), attributes.layout),
          .gradInput = call.outputRows(0),
          .gradQueryWeight = call.output(1),
          .gradKeyWeight = call.output(2),
          .accumulate = call.accumulate(1)};
}

// --- attention -------------------------------------------------------------------------------------------------------

void expectAttention(const Checker& checker, const AttentionAttributes& attributes) {
  expectLayout(checker, attributes.layout);
  checker.expect(attributes.window >= 0, "the window cannot be negative");
}

// One head's output beside the other: [batch, time, heads * headSize].
void expectHeads(const Checker& checker, const CheckedOperand& output, const CheckedOperand& qkv,
                 const HeadLayout& layout) {
  checker.expectShape(output, qkv.type(), {qkv.shape()[0], qkv.shape()[1], layout.heads * layout.headSize});
}

void checkAttention(const Checker& checker) {
  const CheckedOperand qkv = checker.input(0), documentStart = checker.input(1), output = checker.output(0);
  const CheckedOperand logSumExp = checker.output(1);
  const auto& attributes = checker.attributes<AttentionAttributes>();
  expectAttention(checker, attributes);
  expectFused(checker, qkv, attributes.layout);
  const std::int64_t batch = qkv.shape()[0], time = qkv.shape()[1];
  checker.expectShape(documentStart, DType::i32, {batch, time});
  expectHeads(checker, output, qkv, attributes.layout);
  checker.expectShape(logSumExp, DType::f32, {batch, attributes.layout.heads, time});
}

void checkAttentionBackward(const Checker& checker) {
  const CheckedOperand qkv = checker.input(0), documentStart = checker.input(1), output = checker.input(2);
  const CheckedOperand logSumExp = checker.input(3), gradOutput = checker.input(4), gradQkv = checker.output(0);
  const auto& attributes = checker.attributes<AttentionAttributes>();
  expectAttention(checker, attributes);
  expectFused(checker, qkv, attributes.layout);
  const std::int64_t batch = qkv.shape()[0], time = qkv.shape()[1];
  checker.expectShape(documentStart, DType::i32, {batch, time});
  expectHeads(checker, output, qkv, attributes.layout);
  checker.expectShape(logSumExp, DType::f32, {batch, attributes.layout.heads, time});
  checker.expectSame(gradOutput, output);
  checker.expectSame(gradQkv, qkv);
}

void attentionGradient(GradientBuilder& builder, std::size_t index) {
  const Node node = builder.node(index);
  const TensorId gradQkv = builder.makeGradient(node.inputs[0]);
  builder.append(Operator::attentionBackward,
                 {node.inputs[0], node.inputs[1], node.outputs[0], node.outputs[1], builder.reached(node.outputs[0])},
                 {gradQkv}, node.attributes);
  builder.give(node.inputs[0], gradQkv);
}

// Scores and weighted values: two products of [queries x headSize] with [headSize x keys] a head. The causal half is
// counted too, as is the custom for MFU; a window is not.
double attentionProducts(const Shape& qkv, std::int64_t keys, const AttentionAttributes& attributes) {
  const std::int64_t seen = attributes.window > 0 ? std::min(attributes.window, keys) : keys;
  const auto headWidth = static_cast<double>(attributes.layout.heads * attributes.layout.headSize);
  return 4.0 * static_cast<double>(qkv.rows()) * static_cast<double>(seen) * headWidth;
}

double attentionFlops(const Program& program, const Node& node) {
  const Shape& qkv = inputOf(program, node, 0).shape;
  return attentionProducts(qkv, qkv[1], std::get<AttentionAttributes>(node.attributes));
}

// Twice the forward pass; that the scores are made again is not counted.
double attentionBackwardFlops(const Program& program, const Node& node) { return 2 * attentionFlops(program, node); }

double cachedAttentionFlops(const Program& program, const Node& node) {
  return attentionProducts(inputOf(program, node, 0).shape, inputOf(program, node, 2).shape[2],
                           std::get<AttentionAttributes>(node.attributes));
}

kernels::Attention attentionOperation(const Call& call) {
  const auto& attributes = call.attributes<AttentionAttributes>();
  const HeadLayout& layout = attributes.layout;
  const FusedViews views = split(call.input(0), layout);
  return {.query = views.query,
          .key = views.key,
          .value = views.value,
          .documentStart = call.input(1),
          .window = attributes.window,
          .scale = attributes.scale,
          .output = headsOf(call.output(0), 0, layout.heads, layout.headSize),
          .logSumExp = call.output(1),
          .documents = call.documents()};
}

kernels::AttentionBackward attentionBackwardOperation(const Call& call) {
  const auto& attributes = call.attributes<AttentionAttributes>();
  const HeadLayout& layout = attributes.layout;
  const FusedViews views = split(call.input(0), layout), gradients = split(call.output(0), layout);
  return {.query = views.query,
          .key = views.key,
          .value = views.value,
          .documentStart = call.input(1),
          .output = headsOf(call.input(2), 0, layout.heads, layout.headSize),
          .logSumExp = call.input(3),
          .gradOutput = headsOf(call.input(4), 0, layout.heads, layout.headSize),
          .window = attributes.window,
          .scale = attributes.scale,
          .gradQuery = gradients.query,
          .gradKey = gradients.key,
          .gradValue = gradients.value,
          .documents = call.documents()};
}

// --- attention over a cache ------------------------------------------------------------------------------------------

void checkCachedAttention(const Checker& checker) {
  const CheckedOperand qkv = checker.input(0), lengths = checker.input(1), keyCache = checker.input(2);
  const CheckedOperand valueCache = checker.input(3), output = checker.output(0);
  const auto& attributes = checker.attributes<AttentionAttributes>();
  const HeadLayout& layout = attributes.layout;
  expectAttention(checker, attributes);
  expectFused(checker, qkv, layout);
  checker.expectShape(lengths, DType::i32, {qkv.shape()[0]});
  const Shape& cache = keyCache.shape();
  const bool isCoded = keyCache.type() == DType::i8;
  const std::int64_t row = isCoded ? kernels::cacheRowBytes(layout.headSize) : layout.headSize;
  checker.expect((isCoded || keyCache.type() == qkv.type()) && cache.rank() == 4 && cache[0] == qkv.shape()[0] &&
                     cache[1] == layout.kvHeads && cache[3] == row,
                 keyCache,
                 Shape{qkv.shape()[0], layout.kvHeads}.text() + " followed by [capacity, " + std::to_string(row) +
                     "], of qkv's type or int8");
  checker.expectSame(valueCache, keyCache);
  checker.expect(keyCache.tensor->role == Role::state && valueCache.tensor->role == Role::state,
                 "the caches are written: their role must be state");
  expectHeads(checker, output, qkv, layout);
}

kernels::CachedAttention cachedAttentionOperation(const Call& call) {
  const auto& attributes = call.attributes<AttentionAttributes>();
  const HeadLayout& layout = attributes.layout;
  const FusedViews views = split(call.input(0), layout);
  return {.query = views.query,
          .key = views.key,
          .value = views.value,
          .lengths = call.input(1),
          .keyCache = call.input(2),
          .valueCache = call.input(3),
          .window = attributes.window,
          .scale = attributes.scale,
          .output = headsOf(call.output(0), 0, layout.heads, layout.headSize)};
}

}  // namespace

OperatorEntry rotaryEntry() {
  return {.name = "rotary",
          .inputs = {{"input"}, {"positions"}, {"queryWeight", optional}, {"keyWeight", optional}},
          .outputs = {{"output"}, {"reciprocal", optional}},
          .check = checkRotary,
          .gradient = rotaryGradient,
          .split = SplitRule::heads,
          .run = launch<rotaryOperation>,
          .mayShare = [](const Node& node, int output, int input) {
            return output == 0 && input == 0 && !hasInput(node, 2);
          }};
}

OperatorEntry rotaryBackwardEntry() {
  return {.name = "rotaryBackward",
          .inputs = {{"gradOutput"},
                     {"positions"},
                     {"input", optional},
                     {"queryWeight", optional},
                     {"keyWeight", optional},
                     {"reciprocal", optional}},
          .outputs = {{"gradInput"}, {"gradQueryWeight", optional}, {"gradKeyWeight", optional}},
          .check = checkRotaryBackward,
          .run = launch<rotaryBackwardOperation>,
          .mayShare = [](const Node&, int output, int input) { return output == 0 && input == 0; }};
}

OperatorEntry attentionEntry() {
  return {.name = "attention",
          .inputs = {{"qkv"}, {"documentStart"}},
          .outputs = {{"output"}, {"logSumExp"}},
          .check = checkAttention,
          .gradient = attentionGradient,
          .flops = attentionFlops,
          .split = SplitRule::heads,
          .run = launch<attentionOperation>};
}

OperatorEntry attentionBackwardEntry() {
  return {.name = "attentionBackward",
          .inputs = {{"qkv"}, {"documentStart"}, {"output"}, {"logSumExp"}, {"gradOutput"}},
          .outputs = {{"gradQkv"}},
          .check = checkAttentionBackward,
          .flops = attentionBackwardFlops,
          .run = launch<attentionBackwardOperation>};
}

OperatorEntry cachedAttentionEntry() {
  return {.name = "cachedAttention",
          .inputs = {{"qkv"}, {"lengths"}, {"keyCache"}, {"valueCache"}},
          .outputs = {{"output"}},
          .check = checkCachedAttention,
          .flops = cachedAttentionFlops,
          .split = SplitRule::heads,
          .run = launch<cachedAttentionOperation>};
}

}  // namespace tandem::graph::detail
