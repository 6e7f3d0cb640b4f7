#include "common/graph/adapt.h"

#include <algorithm>
#include <cmath>

#include "common/graph/operators.h"
#include "common/graph/passes.h"
#include "tests/common/graph/expectations.h"
#include "tests/common/graph/small_models.h"

namespace tandem::graph::test {
namespace {

Adapters ofLayers(float dropout = 0, bool decomposed = false) {
  return {.rank = 3, .scale = 1.7f, .dropout = dropout, .decomposed = decomposed, .isChosen = [](const std::string&) {
            return true;
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

double normOf(const std::vector<double>& row) {
  double squares = 0;
  for (const double value : row) squares += value * value;
  return std::sqrt(squares);
}

// A row of a weight, with what the adapters add to it: scale * B A.
std::vector<double> changedRow(const std::vector<float>& weight, const std::vector<float>& a,
                               const std::vector<float>& b, std::size_t row, std::size_t inputs, double scale) {
  std::vector<double> values(inputs);
  const std::size_t rank = a.size() / inputs;
  for (std::size_t i = 0; i < inputs; ++i) {
    for (std::size_t r = 0; r < rank; ++r) {
      values[i] += static_cast<double>(b[row * rank + r]) * static_cast<double>(a[r * inputs + i]);
    }
    values[i] = static_cast<double>(weight[row * inputs + i]) + scale * values[i];
  }
  return values;
}

// The lengths of the rows of an adapted weight: as it is frozen, and changed.
struct Norms {
  std::vector<float> frozen, changed;
};
Norms normsOf(const Values& values, const std::string& weight, const Adapters& adapters) {
  const std::vector<float>& a = values.at(adapterName(weight, 'a'));
  const std::vector<float>& b = values.at(adapterName(weight, 'b'));
  const std::size_t inputs = a.size() / static_cast<std::size_t>(adapters.rank);
  Norms norms;
  for (std::size_t row = 0; row * inputs < values.at(weight).size(); ++row) {
    for (const bool isChanged : {false, true}) {
      const double scale = isChanged ? static_cast<double>(adapters.scale) : 0.0;
      const double norm = normOf(changedRow(values.at(weight), a, b, row, inputs, scale));
      (isChanged ? norms.changed : norms.frozen).push_back(static_cast<float>(norm));
    }
  }
  return norms;
}

// Puts them into the weight.
void merge(Values& values, const std::string& weight, const Adapters& adapters) {
  const Norms norms = normsOf(values, weight, adapters);
  const std::vector<float> a = values.at(adapterName(weight, 'a')), b = values.at(adapterName(weight, 'b'));
  const std::vector<float> before = values.at(weight);
  const std::size_t inputs = a.size() / static_cast<std::size_t>(adapters.rank);
  for (std::size_t row = 0; row < norms.changed.size(); ++row) {
    const std::vector<double> changed = changedRow(before, a, b, row, inputs, static_cast<double>(adapters.scale));
    double stretch = 1;
    if (adapters.decomposed) {
      const float gain = values.at(adapterName(weight, 'm'))[row];
      stretch = (static_cast<double>(norms.frozen[row]) + static_cast<double>(gain)) /
                static_cast<double>(norms.changed[row]);
    }
    for (std::size_t i = 0; i < inputs; ++i) {
      values.at(weight)[row * inputs + i] = static_cast<float>(stretch * changed[i]);
    }
  }
}

TEST(Adapt, computesWhatTheMergedWeightsCompute) {
  for (const bool decomposed : {false, true}) {
    for (const Program& forward : {llamaLike({}), gpt2Like({})}) {
      const Adapters adapters = ofLayers(0, decomposed);
      const Program program = adapt(forward, adapters);
      ProgramRunner adapted(program), merged(forward);
      adapted.parameters = withAdapters(program, merged.parameters);
      Values all = adapted.parameters;
      for (const TensorId id : forward.ofRole(Role::parameter)) {
        const std::string& name = forward.tensor(id).name;
        if (name.ends_with(".weight") && all.contains(adapterName(name, 'a'))) merge(all, name, adapters);
      }
      for (auto& [name, values] : merged.parameters) values = all.at(name);
      const Batch batch = randomBatch(forward);
      const std::vector<float> expected = merged.run(batch), found = adapted.run(batch);
      ASSERT_EQ(expected.size(), found.size());
      for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-5) << decomposed;
    }
  }
}

// B and what lengths gain begin as zero. Dropout reaches the changes alone, so there is nothing yet that it would drop.
TEST(Adapt, decomposedOnesBeginAsTheModel) {
  for (const float dropout : {0.0f, 0.4f}) {
    for (const Program& forward : {llamaLike({}), gpt2Like({})}) {
      const Program program = adapt(forward, ofLayers(dropout, true));
      ProgramRunner adapted(program), base(forward);
      adapted.parameters = withAdapters(program, base.parameters);
      for (auto& [name, values] : adapted.parameters) {
        if (name.ends_with(".lora_b") || name.ends_with(".lora_m")) std::ranges::fill(values, 0.0f);
      }
      Batch batch = randomBatch(forward);
      const std::vector<float> expected = base.run(batch), found = adapted.run(batch);
      for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(found[i], expected[i], 2e-6) << dropout;

      for (auto& [name, values] : adapted.parameters) {
        if (name.ends_with(".lora_m")) std::ranges::fill(values, 0.5f);
      }
      const std::vector<float> longer = adapted.run(batch);
      EXPECT_NE(longer, found);
      for (std::int32_t& key : batch["dropout_keys"]) key += 1;
      EXPECT_EQ(adapted.run(batch) == longer, dropout == 0) << "lengths are learned of what is not dropped";
    }
  }
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

// The program with norms that stay what these parameters make them, whatever becomes of the parameters.
Program withNormsHeld(const Program& program, const Adapters& adapters, Values& parameters) {
  Program held = program;
  std::vector<Node> nodes;
  for (const Node& node : held.nodes()) {
    if (node.op != Operator::rowNorms) {
      nodes.push_back(node);
      continue;
    }
    const Norms norms = normsOf(parameters, held.tensor(node.inputs[0]).name, adapters);
    for (const int index : {0, 1}) {
      Tensor& tensor = held.tensor(node.outputs[static_cast<std::size_t>(index)]);
      tensor.role = Role::frozen;
      parameters[tensor.name] = index == 0 ? norms.frozen : norms.changed;
    }
  }
  held.nodes() = std::move(nodes);
  return held;
}

// Differences of the loss along the gradient, in the same mask of dropout and with the norms that the gradient takes as
// constants.
void expectGradientsOfTheLoss(const Program& model, const Adapters& adapters, std::int64_t learned) {
  const Program forward = adapt(model, adapters);
  ProgramRunner trained(fuse(differentiate(fuse(forward))));
  Values parameters = trained.parameters = randomParameters(forward, 3);
  ProgramRunner plain(withNormsHeld(forward, adapters, parameters));
  plain.parameters = parameters;
  const Batch batch = randomBatch(forward);
  trained.run(batch);
  const Values gradients = trained.gradients();
  EXPECT_EQ(std::ssize(gradients), learned * countOf(model, Operator::linear));
  for (const auto& [name, gradient] : gradients) {
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
    EXPECT_NEAR((losses[1] - losses[0]) / (2 * step), square, 2e-2 * square + 1e-4) << name << " " << adapters.dropout;
  }
}

TEST(Adapt, givesTheGradientsOfTheLoss) {
  for (const float dropout : {0.0f, 0.4f}) {
    expectGradientsOfTheLoss(llamaLike({.queryKeyNorm = true}), ofLayers(dropout), 2);
    expectGradientsOfTheLoss(llamaLike({.queryKeyNorm = true}), ofLayers(dropout, true), 3);
    expectGradientsOfTheLoss(gpt2Like({}), ofLayers(dropout, true), 3);
  }
}

// What is recomputed, and where activations lie, changes no number.
TEST(Adapt, decomposedOnesAreRecomputedToTheSameBits) {
  for (const float dropout : {0.0f, 0.4f}) {
    const Program program = fuse(differentiate(fuse(adapt(gpt2Like({}), ofLayers(dropout, true)))));
    for (const Recompute policy : {Recompute::nothing, Recompute::selective, Recompute::full}) {
      expectSameResults(program, recompute(program, policy), 0);
    }
    // What the gradient of an activation reads is made again from the product, which its own gradient keeps.
    const Program less = recompute(program, Recompute::selective);
    if (dropout > 0) continue;
    EXPECT_GT(countOf(less, Operator::rescale), countOf(program, Operator::rescale));
    EXPECT_LT(planMemory(less).peakLiveBytes, planMemory(program).peakLiveBytes);
  }
}

// A bias that were trained would get no gradient.
TEST(Adapt, aRescaledBiasIsFrozen) {
  Program program = adapt(gpt2Like({}), ofLayers(0, true));
  const auto rescale = std::ranges::find(program.nodes(), Operator::rescale, &Node::op);
  ASSERT_NE(rescale, program.nodes().end());
  program.tensor(rescale->inputs[4]).role = Role::parameter;
  expectUsageError([&] { check(program); }, {"rescale", "bias", "frozen"});
}

}  // namespace
}  // namespace tandem::graph::test
