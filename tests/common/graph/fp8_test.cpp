#include <algorithm>

#include "common/graph/operators.h"
#include "common/graph/passes.h"
#include "tests/common/graph/expectations.h"
#include "tests/common/graph/small_models.h"

namespace tandem::graph::test {
namespace {

// 16 rows; all widths but the vocabulary's are multiples of 16.
const SmallModel roundable{.batch = 2, .time = 8, .width = 16, .hidden = 32, .layers = 2, .type = DType::bf16};

Program training(const SmallModel& model, Recompute policy = Recompute::nothing) {
  return recompute(fuse(differentiate(fuse(gpt2Like(model)))), policy);
}

std::string stateOf(const Program& program, const Node& node) {
  const auto* attributes = std::get_if<LinearAttributes>(&node.attributes);
  return attributes == nullptr || attributes->fp8 == none ? "" : program.tensor(attributes->fp8).name;
}

TEST(UseFp8, theThreeProductsOfALayerShareItsState) {
  const Program program = useFp8(training(roundable), "h");
  check(program);
  const std::vector<std::string> weights = fp8Weights(program);
  EXPECT_EQ(weights.size(), 8u);  // four matrices in each of two layers
  for (const std::string& weight : weights) {
    const TensorId id = program.find(weight), state = program.find(fp8StateName(weight));
    EXPECT_EQ(program.tensor(state).role, Role::state);
    EXPECT_EQ(program.tensor(state).shape, Shape({kernels::fp8::count}));
    int products = 0;
    for (const Node& node : program.nodes()) {
      if (stateOf(program, node) != fp8StateName(weight)) continue;
      ++products;
      const bool isGradient = node.op == Operator::linearBackwardWeight;
      EXPECT_EQ(program.tensor(isGradient ? node.outputs[0] : node.inputs[1]).name,
                isGradient ? gradientName(weight) : weight);
    }
    EXPECT_EQ(products, 3) << weight;
    EXPECT_EQ(program.tensor(id).role, Role::parameter);
  }
}

TEST(UseFp8, leavesOtherMatricesAndExtentsThatAreNoMultiplesOf16) {
  EXPECT_TRUE(fp8Weights(useFp8(training(roundable), "nothing")).empty());
  SmallModel narrow = roundable;
  narrow.hidden = 24;
  const std::vector<std::string> weights = fp8Weights(useFp8(training(narrow), "h"));
  EXPECT_EQ(weights.size(), 4u);
  SmallModel few = roundable;
  few.time = 6;
  EXPECT_TRUE(fp8Weights(useFp8(training(few), "h")).empty());
}

TEST(UseFp8, whatIsMadeAgainIsRoundedAgain) {
  const Program program = useFp8(training(roundable, Recompute::full), "h");
  for (const Node& node : program.nodes()) {
    if (node.op == Operator::linear) {
      EXPECT_FALSE(stateOf(program, node).empty());
    }
  }
}

}  // namespace
}  // namespace tandem::graph::test
