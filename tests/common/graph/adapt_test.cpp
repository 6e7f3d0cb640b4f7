#include "common/graph/adapt.h"

#include <algorithm>
#include <cmath>

#include "common/graph/passes.h"
#include "tests/common/graph/expectations.h"
#include "tests/common/graph/small_models.h"

namespace tandem::graph::test {
namespace {

Adapters ofLayers(float dropout = 0) {
  return {.rank = 3, .scale = 1.7f, .dropout = dropout, .isChosen = [](const std::string& weight) {
            return weight.starts_with("layers.");
          }};
}

// The parameters of a program and of its adapted form, which has the same values where it has the same names.
Values withAdapters(const Program& adapted, const Values& base) {
  Values values = randomParameters(adapted, 5);
  for (const auto& [name, value] : base) values[name] = value;
  return values;
}

TEST(Adapt, freezesAllAndLearnsTwoSmallMatricesForEachLinear) {
  const Program forward = llamaLike({});
  const Program adapted = adapt(forward, ofLayers());
  EXPECT_EQ(adapted.ofRole(Role::frozen).size(), forward.ofRole(Role::parameter).size());
  EXPECT_EQ(static_cast<std::int64_t>(adapted.ofRole(Role::parameter).size()), 2 * countOf(forward, Operator::linear));
  const TensorId a = adapted.find("layers.0.qkv.lora_a"), b = adapted.find("layers.0.qkv.lora_b");
  ASSERT_NE(a, none);
  ASSERT_NE(b, none);
  EXPECT_EQ(adapted.tensor(a).shape[0], 3);
  EXPECT_EQ(adapted.tensor(b).shape[1], 3);
  expectUsageError([&] { adapt(forward, {.rank = 1, .isChosen = [](const std::string&) { return false; }}); },
                   {"no linear"});
}

TEST(Adapt, computesWhatTheMergedWeightsCompute) {
  const Program forward = llamaLike({});
  const Program program = adapt(forward, ofLayers());
  ProgramRunner adapted(program), merged(forward);
  adapted.parameters = withAdapters(program, merged.parameters);
  for (const TensorId id : forward.ofRole(Role::parameter)) {
    const std::string& name = forward.tensor(id).name;
    if (!name.ends_with(".weight") || adapted.parameters.count(name.substr(0, name.size() - 6) + "lora_a") == 0)
      continue;
    const std::vector<float>& a = adapted.parameters.at(adapterName(name, 'a'));
    const std::vector<float>& b = adapted.parameters.at(adapterName(name, 'b'));
    std::vector<float>& weight = merged.parameters.at(name);
    const auto inputs = static_cast<std::size_t>(forward.tensor(id).shape[1]);
    for (std::size_t i = 0; i < weight.size(); ++i) {
      double sum = 0;
      for (std::size_t r = 0; r < 3; ++r) {
        sum += static_cast<double>(b[i / inputs * 3 + r]) * static_cast<double>(a[r * inputs + i % inputs]);
      }
      weight[i] += static_cast<float>(1.7 * sum);
    }
  }
  const Batch batch = randomBatch(forward);
  const std::vector<float> expected = merged.run(batch), found = adapted.run(batch);
  ASSERT_EQ(expected.size(), found.size());
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-5);
}

TEST(Adapt, onlyTheAdaptersGetGradients) {
  for (const bool withQueryKeyNorm : {false, true}) {
    const Program forward = adapt(llamaLike({.queryKeyNorm = withQueryKeyNorm}), ofLayers());
    const Program program = fuse(differentiate(fuse(forward)));
    EXPECT_EQ(program.ofRole(Role::gradient).size(), forward.ofRole(Role::parameter).size());
    EXPECT_EQ(countOf(program, Operator::embeddingBackward), 0);
    EXPECT_EQ(countOf(program, Operator::linearBackwardWeight),
              static_cast<std::int64_t>(forward.ofRole(Role::parameter).size()));
  }
}

// Differences of the loss along the gradient, in the same mask of dropout.
TEST(Adapt, givesTheGradientsOfTheLoss) {
  for (const float dropout : {0.0f, 0.4f}) {
    const Program forward = adapt(llamaLike({.queryKeyNorm = true}), ofLayers(dropout));
    ProgramRunner trained(fuse(differentiate(fuse(forward)))), plain(forward);
    plain.parameters = trained.parameters = randomParameters(forward, 3);
    const Batch batch = randomBatch(forward);
    trained.run(batch);
    for (const auto& [name, gradient] : trained.gradients()) {
      const std::string parameter = name.substr(0, name.size() - gradientName("").size());
      double square = 0;
      for (const float value : gradient) square += static_cast<double>(value) * static_cast<double>(value);
      ASSERT_GT(square, 1e-8) << name;
      const double step = 3e-3 / std::sqrt(square);
      double losses[2];
      const std::vector<float> before = plain.parameters.at(parameter);
      for (const int side : {0, 1}) {
        for (std::size_t i = 0; i < before.size(); ++i) {
          plain.parameters.at(parameter)[i] =
              before[i] + static_cast<float>((side == 0 ? -step : step) * static_cast<double>(gradient[i]));
        }
        losses[side] = plain.loss(batch);
      }
      plain.parameters.at(parameter) = before;
      EXPECT_NEAR((losses[1] - losses[0]) / (2 * step), square, 2e-2 * square + 1e-4) << name << " " << dropout;
    }
  }
}

}  // namespace
}  // namespace tandem::graph::test
