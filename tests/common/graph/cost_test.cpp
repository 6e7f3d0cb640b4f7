// Costs against numbers worked out by hand.

#include "common/graph/operators.h"
#include "common/graph/passes.h"
#include "tests/common/graph/expectations.h"
#include "tests/common/graph/small_models.h"

namespace tandem::graph::test {
namespace {

Cost costOf(const Program& program, Operator op) {
  for (const Node& node : program.nodes()) {
    if (node.op == op) return cost(program, node);
  }
  ADD_FAILURE() << "no " << name(op);
  return {};
}

// Rows 2 * 6 = 12; the first linear maps 8 to 24 with a bias: 2 * 12 * 8 * 24 operations on
// 12 * 8 + 24 * 8 + 24 + 12 * 24 floats.
TEST(Cost, ofALinear) {
  const Cost linear = costOf(gpt2Like({}), Operator::linear);
  EXPECT_EQ(linear.flops, 4608);
  EXPECT_EQ(linear.bytes, 4 * (96 + 192 + 24 + 288));
}

// Two sequences of 6: 2 heads of 4, two products of 6 x 6 x 4 each: 2 * 2 * (2 * 2 * 6 * 6 * 4) operations.
TEST(Cost, ofAttention) {
  EXPECT_EQ(costOf(gpt2Like({}), Operator::attention).flops, 2304);
  EXPECT_EQ(costOf(gpt2Like({.window = 3}), Operator::attention).flops, 1152);
  EXPECT_EQ(costOf(differentiate(gpt2Like({})), Operator::attentionBackward).flops, 4608);
}

// 12 rows onto 13 words, 8 wide; in training the two gradients besides.
TEST(Cost, ofTheLoss) {
  EXPECT_EQ(costOf(gpt2Like({}), Operator::linearCrossEntropy).flops, 2 * 12 * 8 * 13);
  EXPECT_EQ(costOf(differentiate(gpt2Like({})), Operator::linearCrossEntropy).flops, 3 * 2 * 12 * 8 * 13);
}

TEST(Cost, anEmbeddingReadsOnlyTheRowsOfItsTokens) {
  const Cost embedding = costOf(llamaLike({.vocabulary = 1000}), Operator::embedding);
  EXPECT_EQ(embedding.flops, 0);
  EXPECT_EQ(embedding.bytes, 4 * (12 + 12 * 8 + 12 * 8));
}

// 6 N + 12 L d T a token, where N counts the weights of matrix products (the tied table once).
TEST(Cost, ofATrainingStepIsTheModelFlopsOfMfu) {
  const SmallModel model{.layers = 3};
  const Program program = fuse(differentiate(fuse(llamaLike(model))));
  std::int64_t weights = 0;
  for (const TensorId id : program.ofRole(Role::parameter)) {
    if (program.tensor(id).shape.rank() == 2) weights += program.tensor(id).shape.count();
  }
  const auto tokens = static_cast<double>(model.batch * model.time);
  const auto attention = static_cast<double>(12 * model.layers * model.width * model.time);
  EXPECT_EQ(totalCost(program).flops, tokens * (6 * static_cast<double>(weights) + attention));
}

}  // namespace
}  // namespace tandem::graph::test
