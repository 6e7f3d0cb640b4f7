// The sharded update on any number of ranks is that of a single rank, and follows its published formula.

#include "common/optim/optimizer.h"

#include <gtest/gtest.h>

#include "tests/common/data/expect_error.h"
#include "tests/common/optim/parameters.h"
#include "tests/mpi_test.h"

namespace tandem::optim {
namespace {

using sharding::FlatLayout;

// Some steps with gradients of changing size.
void train(Parameters& parameters, int steps) {
  for (int step = 1; step <= steps; ++step) {
    parameters.exchangeGradients(step, step == 2 ? 10.0f : 1.0f);
    parameters.optimizer().update(0.01 * step, 0.5, step);
    parameters.optimizer().gatherWeights();
  }
}

void expectSameAsOneRank(const Setting& setting, float tolerance) {
  const auto alone = comm::makeSingleProcess();
  Parameters one(setting, *alone), sharded(setting, test::world());
  train(one, 4);
  train(sharded, 4);
  for (std::size_t p = 0; p < setting.shapes.size(); ++p) {
    const std::vector<float> expected = one.weights(p), got = sharded.weights(p);
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(got[i], expected[i], tolerance) << "parameter " << p;
  }
}

TEST(Optimizer, adamWOnAnyNumberOfRanksIsAdamWOnOne) { expectSameAsOneRank({}, 1e-6f); }

TEST(Optimizer, adamWInBfloat16OnAnyNumberOfRanksIsThatOnOne) {
  expectSameAsOneRank({.storage = base::DType::bf16}, 8e-3f);  // a rounding may fall the other way
}

Setting muonSetting() {
  Setting setting;
  setting.options.method = Method::muon;
  setting.ownership = FlatLayout::Ownership::wholeParameters;
  setting.traits = {{.usesMuon = true, .rowBlocks = {4, 5}}, {.decays = false}, {.usesMuon = true, .rowBlocks = {5}}};
  return setting;
}

TEST(Optimizer, muonOnAnyNumberOfRanksIsMuonOnOne) { expectSameAsOneRank(muonSetting(), 1e-5f); }

TEST(Optimizer, muonInBfloat16OnAnyNumberOfRanksIsThatOnOne) {
  Setting setting = muonSetting();
  setting.storage = base::DType::bf16;
  expectSameAsOneRank(setting, 8e-3f);
}

// AdamW as Loshchilov and Hutter give it, in double precision.
TEST(Optimizer, adamWFollowsItsFormula) {
  const Setting setting{.options = {.beta1 = 0.8f, .beta2 = 0.9f, .epsilon = 1e-3f, .weightDecay = 0.2f}};
  Parameters parameters(setting, test::world());
  train(parameters, 4);
  for (std::size_t p = 0; p < setting.shapes.size(); ++p) {
    const std::vector<float> got = parameters.weights(p);
    const auto number = static_cast<std::int64_t>(p);
    for (std::size_t i = 0; i < got.size(); ++i) {
      double weight = madeUp(number, static_cast<std::int64_t>(i), 0), first = 0, second = 0;
      for (int step = 1; step <= 4; ++step) {
        const double gradient = 0.5 * (step == 2 ? 10 : 1) * madeUp(number, static_cast<std::int64_t>(i), step);
        first = 0.8 * first + 0.2 * gradient;
        second = 0.9 * second + 0.1 * gradient * gradient;
        const double rate = 0.01 * step;
        if (setting.traits[p].decays) weight -= rate * 0.2 * weight;
        weight -= rate * first / (1 - std::pow(0.8, step)) / (std::sqrt(second / (1 - std::pow(0.9, step))) + 1e-3);
      }
      EXPECT_NEAR(got[i], weight, 2e-5) << "parameter " << p << " element " << i;
    }
  }
}

TEST(Optimizer, theNormIsOfTheWholeGradientOnAnyNumberOfRanks) {
  Parameters parameters({}, test::world());
  parameters.exchangeGradients(1);
  double square = 0;
  for (std::size_t p = 0; p < parameters.layout().parameters().size(); ++p) {
    for (std::int64_t i = 0; i < parameters.layout().parameters()[p].count; ++i) {
      square += std::pow(static_cast<double>(madeUp(static_cast<std::int64_t>(p), i, 1)), 2);
    }
  }
  EXPECT_NEAR(parameters.optimizer().gradientNorm(), std::sqrt(square), 1e-6 * std::sqrt(square));
}

TEST(Optimizer, mastersGatherWhatBfloat16Loses) {
  Setting setting{.storage = base::DType::bf16};
  setting.options.weightDecay = 0;
  Parameters parameters(setting, test::world());
  // Steps of 1e-4 vanish in a bfloat16 of size 1 (its unit is 2^-8), a hundred of them must not.
  for (int step = 1; step <= 100; ++step) {
    parameters.exchangeGradients(1);
    parameters.optimizer().update(1e-4, 1.0, step);
    parameters.optimizer().gatherWeights();
  }
  for (std::size_t p = 0; p < setting.shapes.size(); ++p) {
    const std::vector<float> got = parameters.weights(p);
    for (std::size_t i = 0; i < got.size(); ++i) {
      const auto element = static_cast<std::int64_t>(i);
      const float gradient = madeUp(static_cast<std::int64_t>(p), element, 1);
      if (std::abs(gradient) < 1e-3f) continue;
      const float expected = madeUp(static_cast<std::int64_t>(p), element, 0) - std::copysign(0.01f, gradient);
      EXPECT_NEAR(got[i], expected, 0.002f + 0.004f * std::abs(expected)) << "parameter " << p;
    }
  }
}

// Each row block of a fused projection is updated as if it were a parameter of its own.
TEST(Optimizer, muonTreatsTheBlocksOfAFusedMatrixAsMatrices) {
  auto update = [](std::int64_t rows, const std::vector<std::int64_t>& blocks) {
    Setting setting = muonSetting();
    setting.shapes = {{"m", {rows, 8}}};
    setting.traits = {{.usesMuon = true, .rowBlocks = blocks}};
    Parameters parameters(setting, test::world());
    parameters.exchangeGradients(1);
    parameters.optimizer().update(0.1, 1.0, 1);
    parameters.optimizer().gatherWeights();
    return parameters.weights(0);
  };
  const std::vector<float> fused = update(6, {4, 2}), first = update(4, {4}), whole = update(6, {6});
  for (std::size_t i = 0; i < first.size(); ++i) EXPECT_NEAR(fused[i], first[i], 1e-6) << "element " << i;
  EXPECT_GT(std::abs(fused[0] - whole[0]), 1e-4) << "the blocks of this gradient are not orthogonal to each other";
}

// The first update, without decay, is 0.2 sqrt(max(rows, columns)) times a matrix with singular values near one.
TEST(Optimizer, muonStepsInAnOrthogonalDirection) {
  constexpr std::int64_t rows = 6, columns = 10;
  Setting setting = muonSetting();
  setting.options.weightDecay = 0;
  setting.shapes = {{"m", {rows, columns}}};
  setting.traits = {{.usesMuon = true, .rowBlocks = {rows}}};
  Parameters parameters(setting, test::world());
  parameters.exchangeGradients(3, 100.0f);
  const std::vector<float> before = parameters.weights(0);
  parameters.optimizer().update(0.1, 1.0, 1);
  parameters.optimizer().gatherWeights();
  const std::vector<float> after = parameters.weights(0);
  std::vector<double> direction;
  for (std::size_t i = 0; i < before.size(); ++i) {
    direction.push_back(static_cast<double>(before[i] - after[i]) / (0.1 * 0.2 * std::sqrt(10.0)));
  }
  double trace = 0;
  for (const double value : direction) trace += value * value;
  // sin(a + 7 i) has rank two: two singular values near one, the rest stays small.
  EXPECT_GT(trace, 2 * 0.6 * 0.6);
  EXPECT_LT(trace, rows * 1.3 * 1.3);
  for (std::int64_t r = 0; r < rows; ++r) {
    double square = 0;
    for (std::int64_t c = 0; c < columns; ++c)
      square += std::pow(direction[static_cast<std::size_t>(r * columns + c)], 2);
    EXPECT_LT(square, 1.3 * 1.3) << "no row of a nearly orthogonal matrix is longer than one";
  }
}

TEST(Optimizer, statesAndMastersAreLaidOutByOwnedRuns) {
  Parameters parameters({}, test::world());
  parameters.exchangeGradients(1);
  parameters.optimizer().update(0.01, 1.0, 1);
  parameters.optimizer().gatherWeights();
  const std::vector<Optimizer::State> states = parameters.optimizer().states();
  ASSERT_EQ(states.size(), 2u);
  EXPECT_EQ(states[0].name, "first_moment");
  EXPECT_EQ(states[1].name, "second_moment");
  for (const sharding::OwnedRun& run : parameters.optimizer().ownedRuns()) {
    for (std::int64_t i = 0; i < run.count; ++i) {
      const float gradient = madeUp(run.parameter, run.begin + i, 1);
      EXPECT_NEAR(*static_cast<float*>(states[0].at(run.shardOffset + i)), 0.1f * gradient, 1e-6);
      EXPECT_NEAR(*static_cast<float*>(states[1].at(run.shardOffset + i)), 0.05f * gradient * gradient, 1e-6);
    }
  }
}

// The same gradients, to the bit, on every rank.
void updateBySetGradients(Parameters& parameters, int steps) {
  for (int step = 1; step <= steps; ++step) {
    for (std::size_t p = 0; p < parameters.layout().parameters().size(); ++p) {
      const sharding::FlatParameter& parameter = parameters.layout().parameters()[p];
      for (std::int64_t i = 0; i < parameter.count; ++i) {
        parameters.store().gradients()[parameter.offset + i] = madeUp(static_cast<std::int64_t>(p), i, step);
      }
    }
    parameters.optimizer().update(0.01, 0.5, step);
    parameters.optimizer().gatherWeights();
  }
}

// The bits of the two moments of a parameter's element, at ranks that do not own it zero.
std::vector<std::int64_t> momentBits(Parameters& parameters, std::int64_t parameter) {
  const auto place = static_cast<std::size_t>(parameter);
  std::vector<std::int64_t> bits(static_cast<std::size_t>(2 * parameters.layout().parameters()[place].count));
  for (const sharding::OwnedRun& run : parameters.optimizer().ownedRuns()) {
    if (run.parameter != parameter) continue;
    std::size_t at = static_cast<std::size_t>(2 * run.begin);
    for (std::int64_t i = 0; i < run.count; ++i) {
      for (const Optimizer::State& state : parameters.optimizer().states()) {
        bits[at++] = static_cast<base::BFloat16*>(state.at(run.shardOffset + i))->bits;
      }
    }
  }
  return bits;
}

TEST(Optimizer, momentsInBfloat16HaveTheSameBitsOnAnyNumberOfRanks) {
  Setting setting;
  setting.options.states = base::DType::bf16;
  setting.options.seed = 42;
  const auto alone = comm::makeSingleProcess();
  Parameters one(setting, *alone), sharded(setting, test::world());
  updateBySetGradients(one, 4);
  updateBySetGradients(sharded, 4);
  for (std::size_t p = 0; p < setting.shapes.size(); ++p) {
    EXPECT_EQ(sharded.weights(p), one.weights(p)) << "parameter " << p;
    std::vector<std::int64_t> bits = momentBits(sharded, static_cast<std::int64_t>(p));
    test::world().allReduce({bits.data(), base::DType::i64, std::ssize(bits)});
    EXPECT_EQ(bits, momentBits(one, static_cast<std::int64_t>(p))) << "parameter " << p;
  }
}

TEST(Optimizer, momentsInBfloat16DependOnTheSeedAndStayCloseToThoseOfFloat32) {
  const auto alone = comm::makeSingleProcess();
  auto weightsOf = [&](base::DType states, std::uint64_t seed) {
    Setting setting;
    setting.options.states = states;
    setting.options.seed = seed;
    Parameters parameters(setting, *alone);
    updateBySetGradients(parameters, 20);
    return parameters.weights(0);
  };
  const auto exact = weightsOf(base::DType::f32, 1), one = weightsOf(base::DType::bf16, 1),
             other = weightsOf(base::DType::bf16, 2);
  EXPECT_NE(one, other);
  EXPECT_EQ(weightsOf(base::DType::f32, 2), exact) << "float32 has no use for the seed";
  for (std::size_t i = 0; i < exact.size(); ++i) EXPECT_NEAR(one[i], exact[i], 5e-3) << "element " << i;
}

TEST(Optimizer, muonsMomentumIsNotStoredInBfloat16) {
  Setting setting = muonSetting();
  setting.options.states = base::DType::bf16;
  data::expectError(base::ErrorKind::usage, {"--optimizer-states bf16", "adamw"},
                    [&] { Parameters(setting, test::world()); });
}

TEST(Optimizer, namesAreThoseOfTheCommandLine) {
  EXPECT_EQ(parseMethod("adamw"), Method::adamw);
  EXPECT_EQ(parseMethod("muon"), Method::muon);
  data::expectError(base::ErrorKind::usage, {"'sgd'", "adamw", "muon"}, [] { parseMethod("sgd"); });
  EXPECT_EQ(parseStates("fp32"), base::DType::f32);
  EXPECT_EQ(parseStates("bf16"), base::DType::bf16);
  data::expectError(base::ErrorKind::usage, {"'fp16'", "fp32", "bf16"}, [] { parseStates("fp16"); });
}

}  // namespace
}  // namespace tandem::optim
