// Gradients of whole programs against differences of the loss.

#include "common/graph/passes.h"

#include <cmath>

#include "common/base/random.h"
#include "common/graph/operators.h"
#include "tests/common/graph/expectations.h"
#include "tests/common/graph/small_models.h"

namespace tandem::graph::test {
namespace {

// (loss(parameters + step * direction) - loss(parameters - step * direction)) / (2 step)
double difference(ProgramRunner& runner, const Batch& batch, const std::string& name,
                  const std::vector<double>& direction, double step) {
  const std::vector<float> before = runner.parameters.at(name);
  double losses[2];
  for (const int side : {0, 1}) {
    std::vector<float>& values = runner.parameters.at(name);
    for (std::size_t index = 0; index < values.size(); ++index) {
      values[index] = static_cast<float>(before[index] + (side == 0 ? -step : step) * direction[index]);
    }
    losses[side] = runner.loss(batch);
  }
  runner.parameters.at(name) = before;
  return (losses[1] - losses[0]) / (2 * step);
}

// Richardson's extrapolation takes out the error of second order in the step.
double slope(ProgramRunner& runner, const Batch& batch, const std::string& name, std::vector<double> direction) {
  double norm = 0;
  for (const double value : direction) norm += value * value;
  norm = std::sqrt(norm);
  for (double& value : direction) value /= norm;
  const double step = 8e-3;
  const double wide = difference(runner, batch, name, direction, step);
  const double narrow = difference(runner, batch, name, direction, step / 2);
  return (4 * narrow - wide) / 3 * norm;
}

double dot(const std::vector<double>& direction, const std::vector<float>& gradient) {
  double sum = 0;
  for (std::size_t index = 0; index < gradient.size(); ++index) sum += direction[index] * gradient[index];
  return sum;
}

// Along the gradient, along two random directions, and along single elements, for every parameter.
void expectGradientsOfTheLoss(const Program& forward) {
  ProgramRunner trained(differentiate(forward)), plain(forward);
  const Batch batch = randomBatch(forward);
  trained.gradScale = 0.5f;
  EXPECT_EQ(trained.run(batch), plain.run(batch));
  const Values gradients = trained.gradients();
  ASSERT_EQ(gradients.size(), trained.parameters.size());
  for (const auto& [name, values] : plain.parameters) {
    const std::vector<float>& gradient = gradients.at(gradientName(name));
    ASSERT_EQ(gradient.size(), values.size()) << name;
    double norm = 0;
    for (const float value : gradient) norm += static_cast<double>(value) * value;
    norm = std::sqrt(norm);
    ASSERT_GT(norm, 1e-3) << name << ": a gradient this small proves nothing";
    std::vector<std::vector<double>> directions(5, std::vector<double>(values.size()));
    base::RandomStream random(7, values.size());
    for (std::size_t index = 0; index < values.size(); ++index) {
      directions[0][index] = gradient[index] / norm;
      directions[1][index] = random.nextNormal();
      directions[2][index] = random.nextNormal();
    }
    directions[3][0] = 1;
    directions[4][values.size() - 1] = 1;
    for (const auto& direction : directions) {
      const double expected = 0.5 * slope(plain, batch, name, direction);
      EXPECT_NEAR(dot(direction, gradient), expected, 3e-3 * (std::abs(expected) + norm)) << name;
    }
  }
}

TEST(Differentiate, givesTheGradientsOfAGpt2LikeModel) { expectGradientsOfTheLoss(gpt2Like({})); }

TEST(Differentiate, givesTheGradientsForEveryActivation) {
  for (const auto kind : {kernels::ActivationKind::geluErf, kernels::ActivationKind::relu2}) {
    expectGradientsOfTheLoss(gpt2Like({.layers = 1, .tied = false, .activation = kind}));
  }
}

TEST(Differentiate, givesTheGradientsOfALlamaLikeModelWithGroupedQueriesAndAWindow) {
  expectGradientsOfTheLoss(llamaLike({.heads = 4, .kvHeads = 2, .window = 3, .tied = false}));
}

TEST(Differentiate, givesTheGradientsThroughQueryKeyNorm) {
  expectGradientsOfTheLoss(llamaLike({.kvHeads = 1, .tied = true, .queryKeyNorm = true}));
}

TEST(Differentiate, givesTheGradientsOfAFusedProgram) {
  expectGradientsOfTheLoss(fuse(gpt2Like({})));
  expectGradientsOfTheLoss(fuse(llamaLike({})));
}

// x is read by three linears and added to itself: what flows back along each path has to be summed.
TEST(Differentiate, sumsWhatFlowsBackFromSeveralReaders) {
  Program program;
  const Shape rows{2, 3, 4};
  for (const char* name : {"tokens", "positions", "documentStart", "targets"}) {
    program.addTensor(name, {2, 3}, DType::i32, Role::input);
  }
  const auto activation = [&](const char* name) { return program.addTensor(name, rows, DType::f32, Role::activation); };
  const TensorId table = program.addTensor("embedding.weight", {5, 4}, DType::f32, Role::parameter);
  const TensorId x = activation("x"), doubled = activation("doubled");
  program.addNode(Operator::embedding, {program.find("tokens"), table, none, none}, {x}, EmbeddingAttributes{});
  program.addNode(Operator::add, {x, x}, {doubled});
  TensorId sum = doubled;
  const TensorId shared = program.addTensor("w", {4, 4}, DType::f32, Role::parameter);
  for (const char* name : {"a", "b", "c"}) {
    const TensorId y = activation(name), next = activation((std::string(name) + ".sum").c_str());
    program.addNode(Operator::linear, {x, shared, none}, {none, y}, LinearAttributes{});
    program.addNode(Operator::add, {sum, y}, {next});
    sum = next;
  }
  const TensorId losses = program.addTensor("losses", {2, 3}, DType::f32, Role::output);
  program.addNode(Operator::linearCrossEntropy, {sum, table, program.find("targets"), none}, {losses, none, none});
  expectGradientsOfTheLoss(program);
  expectSameResults(differentiate(program), recompute(fuse(differentiate(program)), Recompute::full), rounding);
}

TEST(Differentiate, writesTheGradientOfATiedTableOnceAndAddsToItLater) {
  const Program program = differentiate(gpt2Like({}));
  const TensorId gradient = program.find(gradientName("embedding.weight"));
  std::vector<std::pair<Operator, bool>> writers;
  for (const Node& node : program.nodes()) {
    for (std::size_t index = 0; index < node.outputs.size(); ++index) {
      if (node.outputs[index] == gradient) writers.emplace_back(node.op, node.addsToOutput[index]);
    }
  }
  const std::vector<std::pair<Operator, bool>> expected = {{Operator::linearCrossEntropy, false},
                                                           {Operator::embeddingBackward, true}};
  EXPECT_EQ(writers, expected);
  EXPECT_EQ(program.nodes().back().op, Operator::embeddingBackward);
}

TEST(Differentiate, needsNoAddInTheBackwardPassOfAResidualStream) {
  const Program forward = llamaLike({});
  EXPECT_EQ(countOf(differentiate(forward), Operator::add), countOf(forward, Operator::add));
}

void expectMicroBatchesToAddUp(const Program& program) {
  const Batch one = randomBatch(program, 1), two = randomBatch(program, 2);
  ProgramRunner first(program), second(program), both(program);
  first.run(one);
  second.run(two);
  both.run(one, true);
  both.run(two, false);
  for (const auto& [name, values] : both.gradients()) {
    for (std::size_t index = 0; index < values.size(); ++index) {
      ASSERT_NEAR(values[index], first.gradients().at(name)[index] + second.gradients().at(name)[index], 2e-5)
          << name << " " << index;
    }
  }
  both.run(one, true);
  EXPECT_EQ(both.gradients(), first.gradients()) << "a first micro batch forgets what was there before";
}

TEST(Differentiate, microBatchesAddUp) {
  expectMicroBatchesToAddUp(fuse(differentiate(fuse(gpt2Like({})))));
  expectMicroBatchesToAddUp(fuse(differentiate(fuse(llamaLike({.tied = false, .queryKeyNorm = true})))));
}

// Weights that bfloat16 holds exactly, so that only what happens on the way differs.
TEST(Differentiate, withBfloat16StorageGivesTheSameGradientsToItsPrecision) {
  for (const bool llama : {false, true}) {
    SmallModel model{.layers = 1};
    const auto build = [&] { return fuse(differentiate(fuse(llama ? llamaLike(model) : gpt2Like(model)))); };
    ProgramRunner exact(build());
    model.type = DType::bf16;
    ProgramRunner rounded(build());
    for (auto& [name, values] : exact.parameters) {
      for (float& value : values) value = static_cast<float>(base::BFloat16(value));
    }
    rounded.parameters = exact.parameters;
    const Batch batch = randomBatch(build());
    exact.run(batch);
    rounded.run(batch);
    for (const auto& [name, values] : exact.gradients()) {
      double error = 0, norm = 0;
      for (std::size_t index = 0; index < values.size(); ++index) {
        error += std::pow(values[index] - rounded.gradients().at(name)[index], 2);
        norm += std::pow(values[index], 2);
      }
      EXPECT_LT(std::sqrt(error / norm), 0.05) << name;
      EXPECT_GT(error, 0) << name;
    }
  }
}

TEST(Differentiate, givesNoGradientToAFrozenWeight) {
  Program forward = llamaLike({.tied = false});
  for (const char* name : {"head.weight", "layers.0.qkv.weight", "embedding.weight"}) {
    forward.tensor(forward.find(name)).role = Role::frozen;
  }
  const Program program = differentiate(forward);
  EXPECT_EQ(program.find(gradientName("head.weight")), none);
  EXPECT_EQ(program.find(gradientName("layers.0.qkv.weight")), none);
  EXPECT_EQ(countOf(program, Operator::embeddingBackward), 0);
  EXPECT_EQ(countOf(program, Operator::linearBackwardWeight), countOf(forward, Operator::linear) - 1);
}

TEST(Differentiate, refusesWhatItCannotDifferentiate) {
  Program noLoss = gpt2Like({});
  noLoss.nodes().pop_back();
  expectUsageError([&] { differentiate(noLoss); }, {"no linearCrossEntropy"});
  expectUsageError([&] { differentiate(differentiate(gpt2Like({}))); }, {"differentiated already"});
  Program twice = gpt2Like({});
  twice.nodes().push_back(twice.nodes().back());
  expectUsageError([&] { differentiate(twice); }, {"has one loss"});
  Program unused = gpt2Like({});
  unused.addTensor("forgotten", {3}, DType::f32, Role::parameter);
  expectUsageError([&] { differentiate(unused); }, {"'forgotten'", "does not reach the loss"});
}

}  // namespace
}  // namespace tandem::graph::test
