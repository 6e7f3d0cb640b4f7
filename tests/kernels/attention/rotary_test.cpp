#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <random>

#include "kernels/cpu/operators.h"
#include "tests/kernels/cpu/targets.h"

namespace tandem::kernels::cpu::test {
namespace {

// One call's operands; with QK-norm when `normed`.
struct RotaryCase {
  RotaryCase(HeadLayout layout_, std::int64_t rows_, bool normed_, int threads)
      : layout(layout_), rows(rows_), normed(normed_) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < rows * layout.width(); ++i) {
      input.push_back(normal(random));
      gradOutput.push_back(normal(random));
    }
    for (std::int64_t i = 0; i < layout.headSize; ++i) {
      queryWeight.push_back(1 + 0.3f * normal(random));
      keyWeight.push_back(1 + 0.3f * normal(random));
    }
    for (std::int64_t row = 0; row < rows; ++row) positions.push_back(static_cast<std::int32_t>(row * 37 % 1000));
    for (std::int64_t i = 0; i < layout.headSize / 2; ++i) {
      frequencies.push_back(std::pow(10000.0f, -2.0f * static_cast<float>(i) / static_cast<float>(layout.headSize)));
    }
    reciprocal.resize(static_cast<std::size_t>(rows * turned()));
    gradQueryWeight.assign(queryWeight.size(), 100);
    gradKeyWeight.assign(keyWeight.size(), 100);
    context.threads = threads;
  }
  std::int64_t turned() const { return layout.heads + layout.kvHeads; }

  ConstTensorView wide(const std::vector<float>& data) const {
    return {data.data(), DType::f32, {rows, layout.width()}};
  }
  TensorView wide(std::vector<float>& data) const { return {data.data(), DType::f32, {rows, layout.width()}}; }
  static ConstTensorView flat(const std::vector<float>& data) {
    return {data.data(), DType::f32, {static_cast<std::int64_t>(data.size())}};
  }
  static TensorView flat(std::vector<float>& data) {
    return {data.data(), DType::f32, {static_cast<std::int64_t>(data.size())}};
  }

  void forward(const std::vector<float>& from, std::vector<float>& to) {
    to.resize(from.size());
    Rotary op;
    op.layout = layout;
    op.input = wide(from);
    op.positions = {positions.data(), DType::i32, {rows}};
    op.frequencies = flat(std::as_const(frequencies));
    if (normed) op.queryWeight = flat(std::as_const(queryWeight)), op.keyWeight = flat(std::as_const(keyWeight));
    op.epsilon = epsilon;
    op.output = wide(to);
    if (normed) op.reciprocal = {reciprocal.data(), DType::f32, {rows, turned()}};
    run(op, context);
  }
  void backward(const std::vector<float>& from, std::vector<float>& to, bool accumulate) {
    to.resize(from.size());
    RotaryBackward op;
    op.layout = layout;
    op.gradOutput = wide(from);
    op.positions = {positions.data(), DType::i32, {rows}};
    op.frequencies = flat(std::as_const(frequencies));
    if (normed) {
      op.input = wide(std::as_const(input));
      op.queryWeight = flat(std::as_const(queryWeight));
      op.keyWeight = flat(std::as_const(keyWeight));
      op.reciprocal = {reciprocal.data(), DType::f32, {rows, turned()}};
      op.gradQueryWeight = flat(gradQueryWeight);
      op.gradKeyWeight = flat(gradKeyWeight);
      op.accumulate = accumulate;
    }
    op.gradInput = wide(to);
    run(op, context);
  }

  // The definition in double: output of `values`, with `weights` the concatenation of query and key weight.
  std::vector<double> plain(const std::vector<double>& values, const std::vector<double>& weights) const {
    std::vector<double> result(values);
    const auto size = static_cast<std::size_t>(layout.headSize), half = size / 2;
    for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
      for (std::size_t h = 0; h < static_cast<std::size_t>(turned()); ++h) {
        double* head = &result[row * static_cast<std::size_t>(layout.width()) + h * size];
        if (normed) {
          double squares = 0;
          for (std::size_t i = 0; i < size; ++i) squares += head[i] * head[i];
          const double factor = 1 / std::sqrt(squares / static_cast<double>(size) + static_cast<double>(epsilon));
          const bool isQuery = h < static_cast<std::size_t>(layout.heads);
          for (std::size_t i = 0; i < size; ++i) head[i] *= factor * weights[isQuery ? i : size + i];
        }
        for (std::size_t i = 0; i < half; ++i) {
          const double angle = static_cast<double>(positions[row]) * static_cast<double>(frequencies[i]);
          const double first = head[i], second = head[i + half];
          head[i] = first * std::cos(angle) - second * std::sin(angle);
          head[i + half] = second * std::cos(angle) + first * std::sin(angle);
        }
      }
    }
    return result;
  }
  std::vector<double> weights() const {
    std::vector<double> both(queryWeight.begin(), queryWeight.end());
    both.insert(both.end(), keyWeight.begin(), keyWeight.end());
    return both;
  }
  // The sum of gradOutput * output.
  double loss(const std::vector<double>& values, const std::vector<double>& weights_) const {
    const std::vector<double> output = plain(values, weights_);
    double sum = 0;
    for (std::size_t i = 0; i < output.size(); ++i) sum += output[i] * static_cast<double>(gradOutput[i]);
    return sum;
  }

  HeadLayout layout;
  std::int64_t rows;
  bool normed;
  float epsilon = 1e-3f;
  std::vector<float> input, gradOutput, queryWeight, keyWeight, frequencies, reciprocal, gradQueryWeight, gradKeyWeight;
  std::vector<std::int32_t> positions;
  Context context;
};

// Rows enough for several blocks of weight gradients; head sizes whose halves end a vector early.
std::deque<RotaryCase> cases() {
  std::deque<RotaryCase> result;
  for (const std::int64_t headSize : {2, 6, 16, 34, 64, 80, 96, 128}) {
    for (const bool normed : {false, true}) {
      result.emplace_back(HeadLayout{6, 2, headSize}, 3, normed, 1);
      result.emplace_back(HeadLayout{3, 3, headSize}, 150, normed, 2);
    }
  }
  return result;
}

TEST(Rotary, headsAreNormalisedAndTurnedAsTheDefinitionSaysAndValuesCopied) {
  onEveryTarget([](const std::string& target) {
    SCOPED_TRACE(target);
    for (RotaryCase& test : cases()) {
      std::vector<float> output;
      test.forward(test.input, output);
      const std::vector<double> want = test.plain({test.input.begin(), test.input.end()}, test.weights());
      for (std::size_t i = 0; i < output.size(); ++i) ASSERT_NEAR(output[i], want[i], 3e-6 * (1 + std::abs(want[i])));
    }
  });
}

TEST(Rotary, worksInPlaceWithoutNorm) {
  RotaryCase test({6, 2, 80}, 40, false, 2);
  std::vector<float> output, inPlace = test.input;
  test.forward(test.input, output);
  test.forward(inPlace, inPlace);
  EXPECT_EQ(inPlace, output);
  std::vector<float> gradient, gradInPlace = test.gradOutput;
  test.backward(test.gradOutput, gradient, false);
  test.backward(gradInPlace, gradInPlace, false);
  EXPECT_EQ(gradInPlace, gradient);
}

TEST(Rotary, anglesAreExactAtPositionAHundredThousand) {
  RotaryCase test({1, 1, 64}, 4, false, 1);
  test.positions = {100000, 99999, 1 << 24, 131071};
  std::vector<float> output;
  for (float& value : test.input) value = 1;
  test.forward(test.input, output);
  const std::vector<double> want = test.plain({test.input.begin(), test.input.end()}, test.weights());
  for (std::size_t i = 0; i < output.size(); ++i) EXPECT_NEAR(output[i], want[i], 5e-7) << "element " << i;
}

TEST(Rotary, backwardIsTheGradientOfTheForward) {
  for (RotaryCase& test : cases()) {
    if (test.rows > 3 && test.layout.headSize > 16) continue;  // differences of large sums: small cases are enough
    std::vector<float> output, gradInput;
    test.forward(test.input, output);
    test.backward(test.gradOutput, gradInput, false);
    std::vector<double> values(test.input.begin(), test.input.end()), weights = test.weights();
    const auto difference = [&](double& place) {
      const double step = 1e-5, kept = place;
      place = kept + step;
      const double above = test.loss(values, weights);
      place = kept - step;
      const double below = test.loss(values, weights);
      place = kept;
      return (above - below) / (2 * step);
    };
    for (std::size_t i = 0; i < values.size(); i += 41) {
      const double want = difference(values[i]);
      ASSERT_NEAR(gradInput[i], want, 1e-5 * (10 + std::abs(want))) << "element " << i;
    }
    if (!test.normed) continue;
    for (std::size_t i = 0; i < test.queryWeight.size(); ++i) {
      const double wantQuery = difference(weights[i]), wantKey = difference(weights[i + test.queryWeight.size()]);
      ASSERT_NEAR(test.gradQueryWeight[i], wantQuery, 1e-5 * (10 + std::abs(wantQuery)));
      ASSERT_NEAR(test.gradKeyWeight[i], wantKey, 1e-5 * (10 + std::abs(wantKey)));
    }
  }
}

TEST(Rotary, weightGradientsAreAddedToWhatIsThereWhenAsked) {
  RotaryCase test({3, 1, 16}, 200, true, 1);
  std::vector<float> output, gradInput;
  test.forward(test.input, output);
  test.backward(test.gradOutput, gradInput, false);
  const std::vector<float> once = test.gradQueryWeight, onceKey = test.gradKeyWeight;
  test.backward(test.gradOutput, gradInput, true);
  for (std::size_t i = 0; i < once.size(); ++i) {
    EXPECT_EQ(test.gradQueryWeight[i], 2 * once[i]);
    EXPECT_EQ(test.gradKeyWeight[i], 2 * onceKey[i]);
  }
}

TEST(Rotary, resultsAreTheSameBitForBitAtAnyThreadCount) {
  std::vector<float> outputs[3], gradients[3], weightGradients[3];
  for (std::size_t i = 0; i < 3; ++i) {
    RotaryCase test({9, 3, 64}, 500, true, static_cast<int>(i) + 1);
    test.forward(test.input, outputs[i]);
    test.backward(test.gradOutput, gradients[i], false);
    weightGradients[i] = test.gradKeyWeight;
    EXPECT_EQ(outputs[i], outputs[0]);
    EXPECT_EQ(gradients[i], gradients[0]);
    EXPECT_EQ(weightGradients[i], weightGradients[0]);
  }
}

TEST(Rotary, gradientInPlaceIsAllowedWithNorm) {
  RotaryCase test({2, 1, 34}, 20, true, 1);
  std::vector<float> output, gradInput, inPlace = test.gradOutput;
  test.forward(test.input, output);
  test.backward(test.gradOutput, gradInput, false);
  test.backward(inPlace, inPlace, false);
  EXPECT_EQ(inPlace, gradInput);
}

}  // namespace
}  // namespace tandem::kernels::cpu::test
