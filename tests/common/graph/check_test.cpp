// Every operator's rules: a program that breaks one is refused with the node and the rule.

#include <functional>

#include "common/graph/operators.h"
#include "common/graph/passes.h"
#include "tests/common/graph/expectations.h"
#include "tests/common/graph/small_models.h"

namespace tandem::graph::test {
namespace {

// The first node of that kind.
Node& nodeOf(Program& program, Operator op) {
  for (Node& node : program.nodes()) {
    if (node.op == op) return node;
  }
  throw std::logic_error("no such node");
}

Tensor& input(Program& program, Operator op, std::size_t index) {
  return program.tensor(nodeOf(program, op).inputs.at(index));
}
Tensor& output(Program& program, Operator op, std::size_t index) {
  return program.tensor(nodeOf(program, op).outputs.at(index));
}

using Breaking = std::function<void(Program&)>;

// Breaks a copy of the program, which was right before.
void expectRefused(const Program& program, const Breaking& breakIt, std::initializer_list<const char*> parts) {
  check(program);
  Program broken = program;
  breakIt(broken);
  expectUsageError([&] { check(broken); }, parts);
}

Program cachedProgram() {
  Program program;
  const TensorId qkv = program.addTensor("qkv", {2, 1, 16}, DType::f32, Role::input);
  const TensorId lengths = program.addTensor("lengths", {2}, DType::i32, Role::input);
  const TensorId keys = program.addTensor("keys", {2, 1, 32, 4}, DType::f32, Role::state);
  const TensorId values = program.addTensor("values", {2, 1, 32, 4}, DType::f32, Role::state);
  const TensorId result = program.addTensor("result", {2, 1, 8}, DType::f32, Role::output);
  program.addNode(Operator::cachedAttention, {qkv, lengths, keys, values}, {result},
                  AttentionAttributes{{2, 1, 4}, 0, 0.5f});
  return program;
}

const Program gpt2 = differentiate(gpt2Like({}));
const Program gpt2Fused = fuse(differentiate(gpt2Like({})));
const Program llama = differentiate(llamaLike({.queryKeyNorm = true}));

TEST(Check, namesTheNodeAndTheOperand) {
  expectRefused(gpt2,
                [](Program& p) {
                  input(p, Operator::linear, 1).shape = {24, 9};
                },
                {"node 2 (linear, writes 'h0.qkv')", "weight 'h0.qkv.weight' is float32 [24, 9]",
                 "must be float32 [outputs, 8]"});
}

TEST(Check, operandsAreCompleteAndExist) {
  expectRefused(gpt2, [](Program& p) { nodeOf(p, Operator::linear).inputs.pop_back(); },
                {"(linear", "2 inputs, but takes 3"});
  expectRefused(gpt2,
                [](Program& p) {
                  nodeOf(p, Operator::norm).outputs.push_back(none);
                  nodeOf(p, Operator::norm).addsToOutput.push_back(false);
                },
                {"(norm", "5 outputs, but takes 4"});
  expectRefused(gpt2, [](Program& p) { nodeOf(p, Operator::linear).inputs[1] = none; },
                {"(linear", "weight is missing"});
  expectRefused(gpt2, [](Program& p) { nodeOf(p, Operator::add).inputs[0] = 9999; }, {"(add", "does not exist"});
  expectRefused(gpt2, [](Program& p) { nodeOf(p, Operator::norm).attributes = LinearAttributes{}; },
                {"(norm", "attributes"});
}

TEST(Check, whatIsReadWasWrittenBeforeAndOnce) {
  expectRefused(gpt2, [](Program& p) { std::swap(p.nodes()[1], p.nodes()[2]); },
                {"(linear", "reads 'h0.norm1' before any node has written it"});
  expectRefused(gpt2, [](Program& p) { p.nodes().insert(p.nodes().begin(), p.nodes()[0]); },
                {"node 1 (embedding", "'embedded' was written by an earlier node"});
  expectRefused(gpt2, [](Program& p) { p.tensor(p.find("h0.qkv")).role = Role::parameter; },
                {"(linear", "writes 'h0.qkv', which is no activation"});
}

TEST(Check, embedding) {
  const auto op = Operator::embedding;
  expectRefused(gpt2, [=](Program& p) { input(p, op, 0).type = DType::i64; }, {"(embedding", "tokens", "int32"});
  expectRefused(gpt2, [=](Program& p) { input(p, op, 1).type = DType::i32; },
                {"weight", "float32, bfloat16 or float16"});
  expectRefused(gpt2, [=](Program& p) { input(p, op, 1).shape = {104}; }, {"weight", "[vocabulary, width]"});
  expectRefused(gpt2, [=](Program& p) { nodeOf(p, op).inputs[3] = none; }, {"positions and positionWeight"});
  expectRefused(gpt2, [=](Program& p) { input(p, op, 3).shape = {6, 7}; }, {"positionWeight", "[positions, 8]"});
  expectRefused(gpt2, [=](Program& p) { output(p, op, 0).shape = {2, 6, 9}; }, {"output 'embedded'", "[2, 6, 8]"});
}

TEST(Check, embeddingBackward) {
  const auto op = Operator::embeddingBackward;
  expectRefused(gpt2, [=](Program& p) { nodeOf(p, op).outputs[1] = none; },
                {"(embeddingBackward", "gradPositionWeight"});
  expectRefused(gpt2,
                [=](Program& p) {
                  output(p, op, 1).shape = {6, 9};
                },
                {"gradPositionWeight", "width of gradOutput"});
}

TEST(Check, norm) {
  const auto op = Operator::norm;
  expectRefused(gpt2, [=](Program& p) { input(p, op, 2).shape = {9}; }, {"(norm", "weight", "[8]"});
  expectRefused(gpt2, [=](Program& p) { input(p, op, 3).type = DType::bf16; }, {"bias", "float32 [8]"});
  expectRefused(gpt2, [=](Program& p) { nodeOf(p, op).outputs[2] = none; }, {"mean is given for a layer norm"});
  expectRefused(gpt2, [=](Program& p) { output(p, op, 3).shape = {11}; }, {"reciprocal", "12 elements, one a row"});
  expectRefused(gpt2Fused, [](Program& p) { p.nodes()[5].outputs[0] = none; }, {"(norm", "residual and sum"});
}

TEST(Check, normBackward) {
  const auto op = Operator::normBackward;
  expectRefused(gpt2, [=](Program& p) { output(p, op, 1).type = DType::bf16; }, {"(normBackward", "gradWeight"});
  expectRefused(gpt2, [=](Program& p) { nodeOf(p, op).inputs[4] = none; }, {"mean"});
  expectRefused(gpt2, [=](Program& p) { nodeOf(p, op).addsToOutput[2] = true; }, {"share the bias too"});
}

TEST(Check, linear) {
  const auto op = Operator::linear;
  expectRefused(gpt2, [=](Program& p) { input(p, op, 2).shape = {23}; }, {"bias", "[24]"});
  expectRefused(gpt2, [=](Program& p) { output(p, op, 1).shape = {2, 6, 23}; }, {"output", "[2, 6, 24]"});
  expectRefused(gpt2, [=](Program& p) { nodeOf(p, op).attributes = LinearAttributes{kernels::ActivationKind::swiglu}; },
                {"SwiGLU"});
  expectRefused(gpt2Fused,
                [](Program& p) {
                  for (Node& node : p.nodes()) {
                    if (node.op == Operator::linear) node.attributes = LinearAttributes{};
                  }
                },
                {"preActivation is given without an activation"});
}

TEST(Check, linearBackward) {
  expectRefused(gpt2, [](Program& p) { nodeOf(p, Operator::linearBackwardInput).inputs[2] = p.find("embedded"); },
                {"(linearBackwardInput", "preActivation is given with an activation and only there"});
  expectRefused(gpt2,
                [](Program& p) {
                  output(p, Operator::linearBackwardInput, 0).shape = {2, 6, 13};
                },
                {"(linearBackwardInput", "gradInput", "[2, 6, 12]"});
  expectRefused(gpt2,
                [](Program& p) {
                  output(p, Operator::linearBackwardWeight, 0).shape = {12, 8};
                },
                {"(linearBackwardWeight", "gradWeight", "[8, 12]"});
  expectRefused(gpt2, [](Program& p) { nodeOf(p, Operator::linearBackwardWeight).addsToOutput[0] = true; },
                {"(linearBackwardWeight", "share the bias too"});
}

TEST(Check, activationAndAdd) {
  expectRefused(gpt2,
                [](Program& p) {
                  output(p, Operator::activation, 0).shape = {2, 6, 11};
                },
                {"(activation", "input"});
  expectRefused(llama,
                [](Program& p) {
                  output(p, Operator::activation, 0).shape = {2, 6, 24};
                },
                {"(activation", "input", "[2, 6, 48]"});
  expectRefused(gpt2, [](Program& p) { nodeOf(p, Operator::activation).attributes = ActivationAttributes{}; },
                {"without an activation"});
  expectRefused(gpt2,
                [](Program& p) {
                  output(p, Operator::activationBackward, 0).shape = {2, 6, 11};
                },
                {"(activationBackward", "gradInput"});
  expectRefused(gpt2, [](Program& p) { output(p, Operator::add, 0).type = DType::bf16; },
                {"(add", "output", "like left"});
}

TEST(Check, rotary) {
  const auto op = Operator::rotary;
  const auto attributes = [](Program& p) -> RotaryAttributes& {
    return std::get<RotaryAttributes>(nodeOf(p, op).attributes);
  };
  expectRefused(llama, [=](Program& p) { attributes(p).frequencies.pop_back(); }, {"(rotary", "1 frequencies"});
  expectRefused(llama, [=](Program& p) { attributes(p).layout.headSize = 3; }, {"even headSize"});
  expectRefused(llama, [=](Program& p) { attributes(p).layout.kvHeads = 0; }, {"must be positive"});
  expectRefused(llama, [=](Program& p) { input(p, op, 1).shape = {2, 5}; }, {"positions", "12 elements"});
  expectRefused(llama, [=](Program& p) { nodeOf(p, op).inputs[3] = none; }, {"queryWeight and keyWeight"});
  expectRefused(llama, [=](Program& p) { nodeOf(p, op).outputs[1] = none; }, {"queryWeight and reciprocal"});
  expectRefused(llama, [=](Program& p) { output(p, op, 1).shape = {2, 6, 3}; }, {"reciprocal", "48 elements"});
  expectRefused(llama, [](Program& p) { nodeOf(p, Operator::rotaryBackward).inputs[5] = none; },
                {"(rotaryBackward", "input and reciprocal"});
  expectRefused(llama, [](Program& p) { output(p, Operator::rotaryBackward, 2).shape = {5}; },
                {"(rotaryBackward", "gradKeyWeight"});
}

TEST(Check, attention) {
  const auto op = Operator::attention;
  const auto attributes = [](Program& p) -> AttentionAttributes& {
    return std::get<AttentionAttributes>(nodeOf(p, op).attributes);
  };
  expectRefused(llama, [=](Program& p) { attributes(p).layout = {3, 2, 4}; }, {"(attention", "3 heads", "evenly"});
  expectRefused(llama, [=](Program& p) { attributes(p).window = -1; }, {"window"});
  expectRefused(llama, [=](Program& p) { attributes(p).layout.heads = 4; }, {"qkv", "[batch, time, 32]"});
  expectRefused(llama, [=](Program& p) { input(p, op, 1).shape = {12}; }, {"documentStart", "[2, 6]"});
  expectRefused(llama, [=](Program& p) { output(p, op, 1).shape = {2, 6, 2}; }, {"logSumExp", "[2, 2, 6]"});
  expectRefused(llama,
                [](Program& p) {
                  output(p, Operator::attentionBackward, 0).shape = {2, 6, 25};
                },
                {"(attentionBackward", "gradQkv"});
}

TEST(Check, cachedAttention) {
  const Program program = cachedProgram();
  expectRefused(program, [](Program& p) { p.tensor(p.find("lengths")).shape = {3}; }, {"(cachedAttention", "lengths"});
  expectRefused(program, [](Program& p) { p.tensor(p.find("keys")).shape = {2, 2, 32, 4}; }, {"keyCache", "capacity"});
  expectRefused(program, [](Program& p) { p.tensor(p.find("values")).shape = {2, 1, 31, 4}; }, {"valueCache"});
  expectRefused(program, [](Program& p) { p.tensor(p.find("keys")).role = Role::input; }, {"role must be state"});
}

TEST(Check, linearCrossEntropy) {
  const auto op = Operator::linearCrossEntropy;
  expectRefused(gpt2, [=](Program& p) { output(p, op, 0).shape = {13}; }, {"(linearCrossEntropy", "losses", "12"});
  expectRefused(gpt2, [=](Program& p) { nodeOf(p, op).inputs[3] = none; }, {"gradScale and gradInput"});
  expectRefused(gpt2, [=](Program& p) { input(p, op, 3).shape = {2}; }, {"gradScale", "[1]"});
  Program weighted = gpt2;  // a number for each row
  input(weighted, op, 3).shape = {12};
  check(weighted);
}

TEST(Check, reduceScatter) {
  Program program = gpt2;
  program.addNode(Operator::reduceScatter, {none}, {}, CollectiveAttributes{0});
  expectRefused(program, [](Program& p) { p.nodes().back().attributes = CollectiveAttributes{-1}; },
                {"(reduceScatter)", "bucket"});
}

}  // namespace
}  // namespace tandem::graph::test
