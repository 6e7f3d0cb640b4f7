#include <algorithm>

#include "common/graph/operators.h"
#include "common/graph/passes.h"
#include "tests/common/graph/expectations.h"
#include "tests/common/graph/small_models.h"

namespace tandem::graph::test {
namespace {

Program trained(const Program& forward) { return fuse(differentiate(fuse(forward))); }

// Unfused programs run the same kernels again; of fused ones the selective policy splits some.
TEST(Recompute, changesNoBitWhereTheSameKernelsRunAndElseRoundsOnly) {
  for (const Program& forward : {gpt2Like({.layers = 3}), llamaLike({.heads = 4, .layers = 3, .queryKeyNorm = true})}) {
    for (const Recompute policy : {Recompute::nothing, Recompute::selective, Recompute::full}) {
      expectSameResults(differentiate(forward), recompute(differentiate(forward), policy), 0);
      expectSameResults(trained(forward), recompute(trained(forward), policy), rounding);
    }
  }
}

TEST(Recompute, needsLessMemoryTheMoreIsMadeAgain) {
  const SmallModel deep{.batch = 2, .time = 64, .width = 64, .heads = 4, .kvHeads = 2, .hidden = 192, .layers = 12};
  for (const Program& forward : {gpt2Like(deep), llamaLike(deep)}) {
    const auto bytes = [&](Recompute policy) { return planMemory(recompute(trained(forward), policy)).peakLiveBytes; };
    EXPECT_LT(bytes(Recompute::selective), bytes(Recompute::nothing) * 85 / 100);
    EXPECT_LT(bytes(Recompute::full), bytes(Recompute::selective) / 2);
  }
}

// In a program of many layers the memory that a further layer costs is its input alone.
TEST(Recompute, fullKeepsOneTensorALayer) {
  SmallModel model{.batch = 2, .time = 64, .width = 64, .heads = 4, .kvHeads = 4, .hidden = 256, .layers = 10};
  const auto bytes = [&] { return planMemory(recompute(trained(gpt2Like(model)), Recompute::full)).peakLiveBytes; };
  const std::int64_t before = bytes();
  model.layers = 11;
  EXPECT_EQ(bytes() - before, model.batch * model.time * model.width * 4);
}

TEST(Recompute, selectiveRunsNoMatrixProductOrAttentionAgain) {
  const Program once = trained(llamaLike({}));
  const Program twice = recompute(once, Recompute::selective);
  for (const Operator op : {Operator::linear, Operator::attention, Operator::rotary, Operator::embedding}) {
    EXPECT_EQ(countOf(twice, op), countOf(once, op)) << name(op);
  }
  EXPECT_EQ(totalCost(twice).flops, totalCost(once).flops);
  EXPECT_GT(countOf(twice, Operator::norm), countOf(once, Operator::norm));
}

// Of a layer's four matrix products only the last is not needed again.
TEST(Recompute, fullRunsEachLayerAgainButNotItsLastProduct) {
  const Program once = trained(gpt2Like({.layers = 3}));
  const Program twice = recompute(once, Recompute::full);
  EXPECT_EQ(countOf(once, Operator::linear), 12);
  EXPECT_EQ(countOf(twice, Operator::linear), 12 + 9);
  EXPECT_EQ(countOf(twice, Operator::attention), 6);
  EXPECT_EQ(countOf(twice, Operator::embedding), 1);
}

TEST(Recompute, fullWritesNoPreActivationThatIsMadeAgain) {
  const auto written = [](const Program& program) {
    return std::ranges::count_if(
        program.nodes(), [](const Node& node) { return node.op == Operator::linear && node.outputs[0] != none; });
  };
  const Program once = trained(gpt2Like({.layers = 3}));
  EXPECT_EQ(written(once), 3);
  EXPECT_EQ(written(recompute(once, Recompute::full)), 3);
}

TEST(Recompute, leavesAForwardProgramAsItIs) {
  const Program forward = fuse(gpt2Like({}));
  EXPECT_EQ(recompute(forward, Recompute::full).text(), forward.text());
}

TEST(Recompute, isNamedInOptions) {
  EXPECT_EQ(parseRecompute("none"), Recompute::nothing);
  EXPECT_EQ(parseRecompute("selective"), Recompute::selective);
  EXPECT_EQ(parseRecompute("full"), Recompute::full);
  expectUsageError([] { parseRecompute("some"); }, {"'some'", "none, selective or full"});
}

}  // namespace
}  // namespace tandem::graph::test
