// The reference itself against values known from elsewhere. Its gradients are proved by finite differences
// (agreement_test.cpp); what is differentiated has to be right too.

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "kernels/backend.h"

namespace tandem::kernels::test {

namespace {

// Numbers in memory that a view can be taken of.
struct Doubles {
  explicit Doubles(Shape shape_, std::vector<double> values_ = {}) : shape(shape_), values(std::move(values_)) {
    values.resize(static_cast<std::size_t>(shape.count()));
  }
  operator TensorView() { return {values.data(), DType::f64, shape}; }
  operator ConstTensorView() { return {values.data(), DType::f64, shape}; }
  Shape shape;
  std::vector<double> values;
};

struct Integers {
  explicit Integers(Shape shape_, std::vector<std::int32_t> values_) : shape(shape_), values(std::move(values_)) {}
  operator ConstTensorView() { return {values.data(), DType::i32, shape}; }
  Shape shape;
  std::vector<std::int32_t> values;
};

template <class Operator>
void run(const Operator& op) {
  const auto backend = makeReferenceBackend();
  backend->run(op, *backend->makeStream());
}

void expectNear(const Doubles& got, const std::vector<double>& want, double tolerance) {
  ASSERT_EQ(got.values.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got.values[i], want[i], tolerance) << "element " << i;
}

// Values of torch.nn.functional in float64.
TEST(Reference, activationsAreThoseOfTheLiterature) {
  Doubles input({1, 4}, {-1.5, -0.1, 0.7, 3}), output({1, 4});
  run(Activation{ActivationKind::geluTanh, input, output});
  expectNear(output, {-0.100428423020, -0.046017248955, 0.530570134705, 2.996362607918}, 1e-10);
  run(Activation{ActivationKind::geluErf, input, output});
  expectNear(output, {-0.100210801903, -0.046017216272, 0.530625443444, 2.995950305905}, 1e-10);
  run(Activation{ActivationKind::relu2, input, output});
  expectNear(output, {0, 0, 0.49, 9}, 1e-12);
  Doubles gated({1, 2});
  run(Activation{ActivationKind::swiglu, input, gated});
  expectNear(gated, {-1.5 / (1 + std::exp(1.5)) * 0.7, -0.1 / (1 + std::exp(0.1)) * 3}, 1e-12);
}

TEST(Reference, normsGiveRowsOfUnitVarianceOrUnitMeanSquare) {
  Doubles input({1, 3}, {1, 2, 6}), weight({3}, {1, 1, 2}), bias({3}, {0, 0, 10}), output({1, 3}), mean({1}),
      reciprocal({1});
  run(Norm{.kind = NormKind::layer,
           .epsilon = 0,
           .input = input,
           .residual = {},
           .weight = weight,
           .bias = bias,
           .sum = {},
           .output = output,
           .mean = mean,
           .reciprocal = reciprocal});
  const double deviation = std::sqrt(14.0 / 3);
  expectNear(output, {-2 / deviation, -1 / deviation, 10 + 6 / deviation}, 1e-12);
  run(Norm{.kind = NormKind::rms,
           .epsilon = 0,
           .input = input,
           .residual = {},
           .weight = weight,
           .bias = {},
           .sum = {},
           .output = output,
           .mean = {},
           .reciprocal = reciprocal});
  const double root = std::sqrt(41.0 / 3);
  expectNear(output, {1 / root, 2 / root, 12 / root}, 1e-12);
}

TEST(Reference, rotaryTurnsPairsHalfAHeadApartAndLeavesValues) {
  // One query, one key and one value head of size 4; position 1 turns by a quarter and by nothing.
  Doubles input({1, 12}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}), output({1, 12});
  Doubles frequencies({2}, {std::numbers::pi / 2, 0});
  Integers positions({1}, {1});
  run(Rotary{.layout = {1, 1, 4},
             .input = input,
             .positions = positions,
             .frequencies = frequencies,
             .queryWeight = {},
             .keyWeight = {},
             .output = output,
             .reciprocal = {}});
  expectNear(output, {-3, 2, 1, 4, -7, 6, 5, 8, 9, 10, 11, 12}, 1e-12);
}

TEST(Reference, attentionOfEqualScoresIsTheMeanOfWhatIsSeen) {
  // Four tokens, the second document beginning at the third; queries of zeros see everything alike.
  Doubles query({1, 4, 2, 1}), key({1, 4, 1, 1}, {5, -3, 2, 1}), value({1, 4, 1, 1}, {1, 2, 3, 5});
  Doubles output({1, 4, 2, 1}), logSumExp({1, 2, 4});
  Integers documentStart({1, 4}, {0, 0, 2, 2});
  Attention op{.query = query,
               .key = key,
               .value = value,
               .documentStart = documentStart,
               .window = 0,
               .scale = 1,
               .output = output,
               .logSumExp = logSumExp};
  run(op);
  expectNear(output, {1, 1, 1.5, 1.5, 3, 3, 4, 4}, 1e-12);
  expectNear(logSumExp, {0, std::log(2), 0, std::log(2), 0, std::log(2), 0, std::log(2)}, 1e-12);
  op.window = 1;
  run(op);
  expectNear(output, {1, 1, 2, 2, 3, 3, 5, 5}, 1e-12);
}

TEST(Reference, cachedAttentionOfOneTokenAfterAnotherEqualsAttention) {
  Doubles query({1, 3, 2, 2}, {1, 0.5, -1, 2, 0.3, 1, 1, 1, -2, 0.1, 0.7, 0.2});
  Doubles key({1, 3, 1, 2}, {0.5, 1, -1, 0.3, 2, 0.1}), value({1, 3, 1, 2}, {1, 2, 3, 4, 5, 6});
  Doubles whole({1, 3, 2, 2}), logSumExp({1, 2, 3}), keyCache({1, 1, 4, 2}), valueCache({1, 1, 4, 2});
  Integers documentStart({1, 3}, {0, 0, 0});
  run(Attention{.query = query,
                .key = key,
                .value = value,
                .documentStart = documentStart,
                .window = 2,
                .scale = 0.5f,
                .output = whole,
                .logSumExp = logSumExp});
  for (std::int32_t token = 0; token < 3; ++token) {
    const auto slice = [token](Doubles& all) {
      const Shape one{1, 1, all.shape[2], all.shape[3]};
      return TensorView(all.values.data() + token * one.count(), DType::f64, one);
    };
    Doubles output({1, 1, 2, 2});
    Integers lengths({1}, {token});
    run(CachedAttention{.query = slice(query),
                        .key = slice(key),
                        .value = slice(value),
                        .lengths = lengths,
                        .keyCache = keyCache,
                        .valueCache = valueCache,
                        .window = 2,
                        .scale = 0.5f,
                        .output = output});
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_NEAR(output.values[i], whole.values[static_cast<std::size_t>(token) * 4 + i], 1e-12);
    }
  }
}

TEST(Reference, crossEntropyOfEqualLogitsIsTheLogarithmOfTheVocabulary) {
  Doubles input({2, 2}), weight({5, 2}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}), losses({2});
  Integers targets({2}, {3, -1});
  run(LinearCrossEntropy{.input = input,
                         .weight = weight,
                         .targets = targets,
                         .gradScale = {},
                         .losses = losses,
                         .gradInput = {},
                         .gradWeight = {}});
  expectNear(losses, {std::log(5), 0}, 1e-12);
}

TEST(Reference, linearMultipliesByTheTransposedWeight) {
  Doubles input({2, 2}, {1, 2, 3, 4}), weight({3, 2}, {1, 0, 0, 1, 1, 1}), bias({3}, {0.5, 0, -1}), output({2, 3});
  run(Linear{.input = input, .weight = weight, .bias = bias, .preActivation = {}, .output = output});
  expectNear(output, {1.5, 2, 2, 3.5, 4, 6}, 1e-12);
}

TEST(Reference, firstStepOfAdamWIsTheLearningRateAgainstTheSignPlusDecay) {
  Doubles gradient({2}, {0.3, -20}), weight({2}, {1, -2}), first({2}), second({2});
  run(AdamW{.gradient = gradient,
            .weight = weight,
            .firstMoment = first,
            .secondMoment = second,
            .lowWeight = {},
            .learningRate = 0.125f,
            .beta1 = 0.5f,
            .beta2 = 0.75f,
            .epsilon = 0,
            .weightDecay = 0.25f,
            .gradientScale = 0.5f,
            .step = 1});
  expectNear(weight, {1 - 0.125 * (1 + 0.25), -2 + 0.125 * (1 + 0.5)}, 1e-12);
  expectNear(first, {0.5 * 0.15, 0.5 * -10}, 1e-12);
  expectNear(second, {0.25 * 0.15 * 0.15, 0.25 * 100}, 1e-12);
}

TEST(Reference, newtonSchulzBringsSingularValuesNearOne) {
  Doubles matrix({2, 3}, {3, 0, 0, 0, 0, 1}), output({2, 3});
  run(NewtonSchulz{matrix, output, 5});
  for (const std::size_t on : {std::size_t{0}, std::size_t{5}}) {
    EXPECT_GT(output.values[on], 0.65);
    EXPECT_LT(output.values[on], 1.25);
  }
  EXPECT_NEAR(output.values[1], 0, 1e-12);
}

TEST(Reference, refusesTypesWithoutArithmetic) {
  Integers input({1, 1}, {1});
  Doubles output({1, 1});
  EXPECT_THROW(run(Activation{ActivationKind::relu2, input, output}), base::Error);
}

}  // namespace

}  // namespace tandem::kernels::test
