#include "common/graph/operators.h"
#include "common/graph/passes.h"
#include "tests/common/graph/expectations.h"
#include "tests/common/graph/small_models.h"

namespace tandem::graph::test {
namespace {

TEST(Fuse, leavesNoAddNoGeluAndNoActivationBackwardInAGpt2LikeModel) {
  const Program program = fuse(differentiate(fuse(gpt2Like({}))));
  EXPECT_EQ(countOf(program, Operator::add), 0);
  EXPECT_EQ(countOf(program, Operator::activation), 0);
  EXPECT_EQ(countOf(program, Operator::activationBackward), 0);
  check(program);
}

TEST(Fuse, leavesSwigluAloneInALlamaLikeModel) {
  const Program program = fuse(differentiate(fuse(llamaLike({}))));
  EXPECT_EQ(countOf(program, Operator::add), 0);
  EXPECT_EQ(countOf(program, Operator::activation), 2);
  EXPECT_EQ(countOf(program, Operator::activationBackward), 2);
  check(program);
}

TEST(Fuse, changesLossesAndGradientsByRoundingOnly) {
  const auto unfused = [](const Program& forward) { return differentiate(forward); };
  for (const Program& forward : {gpt2Like({}), llamaLike({.heads = 4, .queryKeyNorm = true})}) {
    expectSameResults(unfused(forward), differentiate(fuse(forward)), rounding);
    expectSameResults(unfused(forward), fuse(differentiate(forward)), rounding);
    expectSameResults(unfused(forward), fuse(differentiate(fuse(forward))), rounding);
  }
}

TEST(Fuse, beforeOrAfterDifferentiationGivesTheSameNodes) {
  const Program before = fuse(differentiate(fuse(gpt2Like({})))), after = fuse(differentiate(gpt2Like({})));
  ASSERT_EQ(before.nodes().size(), after.nodes().size());
  for (std::size_t index = 0; index < before.nodes().size(); ++index) {
    EXPECT_EQ(before.nodes()[index].op, after.nodes()[index].op) << index;
  }
}

TEST(Fuse, keepsThePreActivationOnlyWhereABackwardPassReadsIt) {
  const auto kept = [](const Program& program) {
    int count = 0;
    for (const Node& node : program.nodes()) count += node.op == Operator::linear && node.outputs[0] != none ? 1 : 0;
    return count;
  };
  EXPECT_EQ(kept(fuse(gpt2Like({}))), 0);
  EXPECT_EQ(kept(fuse(differentiate(gpt2Like({})))), 2);
  EXPECT_EQ(kept(differentiate(fuse(gpt2Like({})))), 2);
}

TEST(Fuse, leavesAnAddWhoseSumIsReadBeforeTheNorm) {
  Program program = gpt2Like({.layers = 1});
  const TensorId sum = program.find("h0.middle");
  const TensorId copy = program.addTensor("copy", program.tensor(sum).shape, DType::f32, Role::activation);
  Program early = program;
  for (auto node = early.nodes().begin(); node != early.nodes().end(); ++node) {
    if (node->op != Operator::add || node->outputs[0] != sum) continue;
    Node reader;
    reader.inputs = {sum, sum};
    reader.outputs = {copy};
    reader.addsToOutput = {false};
    early.nodes().insert(node + 1, reader);
    break;
  }
  const Program fused = fuse(early);
  EXPECT_EQ(countOf(fused, Operator::add), 2);
  check(fused);
}

TEST(Fuse, keepsAPreActivationThatIsAnOutput) {
  Program program = gpt2Like({.layers = 1});
  program.tensor(program.find("h0.up")).role = Role::output;
  const Program fused = fuse(program);
  EXPECT_EQ(countOf(fused, Operator::activation), 0);
  EXPECT_NE(fused.text().find("preActivation=h0.up"), std::string::npos) << fused.text();
}

// z = activation(a) + b: the gradient of z goes to both sides as one tensor, so it has to exist.
TEST(Fuse, leavesAGradientThatSomethingElseReads) {
  Program program;
  for (const char* name : {"tokens", "positions", "documentStart", "targets"}) {
    program.addTensor(name, {2, 3}, DType::i32, Role::input);
  }
  const auto rows = [&](const char* name) { return program.addTensor(name, {2, 3, 4}, DType::f32, Role::activation); };
  const auto linear = [&](TensorId x, const std::string& name) {
    const TensorId weight = program.addTensor(name + ".weight", {4, 4}, DType::f32, Role::parameter);
    const TensorId y = rows(name.c_str());
    program.addNode(Operator::linear, {x, weight, none}, {none, y}, LinearAttributes{});
    return y;
  };
  const TensorId table = program.addTensor("embedding.weight", {5, 4}, DType::f32, Role::parameter);
  const TensorId x = rows("x"), activated = rows("activated"), z = rows("z");
  program.addNode(Operator::embedding, {program.find("tokens"), table, none, none}, {x}, EmbeddingAttributes{});
  const TensorId b = linear(x, "b"), a = linear(x, "a");
  program.addNode(Operator::activation, {a}, {activated}, ActivationAttributes{kernels::ActivationKind::geluErf});
  program.addNode(Operator::add, {activated, b}, {z});
  const TensorId losses = program.addTensor("losses", {2, 3}, DType::f32, Role::output);
  program.addNode(Operator::linearCrossEntropy, {linear(z, "v"), table, program.find("targets"), none},
                  {losses, none, none});
  const Program trained = differentiate(program);
  EXPECT_EQ(countOf(fuse(trained), Operator::activationBackward), 1);
  expectSameResults(trained, fuse(trained), rounding);
}

TEST(Fuse, twiceIsOnce) {
  const Program once = fuse(differentiate(gpt2Like({})));
  EXPECT_EQ(fuse(once).text(), once.text());
}

}  // namespace
}  // namespace tandem::graph::test
