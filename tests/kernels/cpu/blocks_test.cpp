// Shapes large enough to be worked through in several blocks of rows, panels of weights and chunks of logits: the
// answers are those of the same rows taken alone, which need only one.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/cpu/values.h"

namespace tandem::kernels::cpu::test {
namespace {

void expectClose(const std::vector<float>& values, const std::vector<float>& wanted, float tolerance) {
  ASSERT_EQ(values.size(), wanted.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_NEAR(values[i], wanted[i], tolerance * (1 + std::abs(wanted[i]))) << "at " << i;
  }
}

std::vector<float> empty(std::int64_t count) { return std::vector<float>(static_cast<std::size_t>(count)); }

struct Head {
  std::int64_t rows, width, vocabulary;
  std::vector<float> input, weight;
  std::vector<std::int32_t> targets;
  std::vector<float> gradScale = {0.5f};

  Head(std::int64_t rows_, std::int64_t width_, std::int64_t vocabulary_)
      : rows(rows_),
        width(width_),
        vocabulary(vocabulary_),
        input(widened(rounded(drawn(rows_ * width_, 1)))),
        weight(widened(rounded(drawn(vocabulary_ * width_, 2)))) {
    for (std::int64_t row = 0; row < rows; ++row) {
      targets.push_back(static_cast<std::int32_t>(row % 7 == 3 ? -1 : row * 7919 % vocabulary));
    }
  }
};

struct HeadResults {
  std::vector<float> losses, gradInput, gradWeight;
};

HeadResults inOneCall(const Head& head, Backend& backend) {
  HeadResults r{empty(head.rows), empty(head.rows * head.width), empty(head.vocabulary * head.width)};
  const auto stream = backend.makeStream();
  backend.run(LinearCrossEntropy{.input = view(head.input, {head.rows, head.width}),
                                 .weight = view(head.weight, {head.vocabulary, head.width}),
                                 .targets = view(head.targets, {head.rows}),
                                 .gradScale = view(head.gradScale, {1}),
                                 .losses = view(r.losses, {head.rows}),
                                 .gradInput = view(r.gradInput, {head.rows, head.width}),
                                 .gradWeight = view(r.gradWeight, {head.vocabulary, head.width})},
              *stream);
  return r;
}

HeadResults rowByRow(const Head& head, Backend& backend) {
  HeadResults r{empty(head.rows), empty(head.rows * head.width), empty(head.vocabulary * head.width)};
  const auto stream = backend.makeStream();
  for (std::int64_t row = 0; row < head.rows; ++row) {
    backend.run(
        LinearCrossEntropy{
            .input = ConstTensorView(head.input.data() + row * head.width, DType::f32, Shape{1, head.width}),
            .weight = view(head.weight, {head.vocabulary, head.width}),
            .targets = ConstTensorView(head.targets.data() + row, DType::i32, Shape{1}),
            .gradScale = view(head.gradScale, {1}),
            .losses = TensorView(r.losses.data() + row, DType::f32, Shape{1}),
            .gradInput = TensorView(r.gradInput.data() + row * head.width, DType::f32, Shape{1, head.width}),
            .gradWeight = view(r.gradWeight, {head.vocabulary, head.width}),
            .accumulateWeight = true},
        *stream);
  }
  return r;
}

TEST(Blocks, chunksOfLogitsGiveTheSameLossesAndGradientsAsSingleRows) {
  const auto backend = makeCpuBackend({.threads = 2});
  const Head head(23, 8, 1000003);  // a chunk has 8 rows
  const HeadResults whole = inOneCall(head, *backend), single = rowByRow(head, *backend);
  expectClose(whole.losses, single.losses, 1e-6f);
  expectClose(whole.gradInput, single.gradInput, 5e-5f);  // a million tiny terms added to one that is not
  expectClose(whole.gradWeight, single.gradWeight, 1e-6f);
}

TEST(Blocks, panelsOfABfloat16HeadGiveWhatTheWholeDoes) {
  const auto backend = makeCpuBackend({.threads = 2});
  const auto stream = backend->makeStream();
  const Head head(9, 8, 600011);  // a panel has 524288 rows of the weight
  const HeadResults whole = inOneCall(head, *backend);
  const auto input = rounded(head.input), weight = rounded(head.weight);
  std::vector<base::BFloat16> gradInput(input.size());
  HeadResults low{empty(head.rows), {}, empty(head.vocabulary * head.width)};
  backend->run(LinearCrossEntropy{.input = view(input, {head.rows, head.width}),
                                  .weight = view(weight, {head.vocabulary, head.width}),
                                  .targets = view(head.targets, {head.rows}),
                                  .gradScale = view(head.gradScale, {1}),
                                  .losses = view(low.losses, {head.rows}),
                                  .gradInput = view(gradInput, {head.rows, head.width}),
                                  .gradWeight = view(low.gradWeight, {head.vocabulary, head.width})},
               *stream);
  expectClose(low.losses, whole.losses, 1e-6f);
  expectClose(widened(gradInput), whole.gradInput, 8e-3f);
  expectClose(low.gradWeight, whole.gradWeight, 1e-6f);
}

TEST(Blocks, blocksOfRowsGiveTheSameActivationsAsFewRowsAlone) {
  const auto backend = makeCpuBackend({.threads = 2});
  const auto stream = backend->makeStream();
  constexpr std::int64_t rows = 1501, inputs = 8, outputs = 3001;
  const auto input = drawn(rows * inputs, 1), weight = drawn(outputs * inputs, 2), bias = drawn(outputs, 3);
  auto run = [&](const float* from, std::int64_t count, float* preActivation, float* to) {
    backend->run(Linear{.input = ConstTensorView(from, DType::f32, Shape{count, inputs}),
                        .weight = view(weight, {outputs, inputs}),
                        .bias = view(bias, {outputs}),
                        .activation = ActivationKind::geluErf,
                        .preActivation = TensorView(preActivation, DType::f32, Shape{count, outputs}),
                        .output = TensorView(to, DType::f32, Shape{count, outputs})},
                 *stream);
  };
  auto wholePre = empty(rows * outputs), whole = wholePre, partPre = wholePre, part = wholePre;
  run(input.data(), rows, wholePre.data(), whole.data());
  for (std::int64_t row = 0; row < rows; row += 100) {
    const std::int64_t count = std::min<std::int64_t>(100, rows - row);
    run(input.data() + row * inputs, count, partPre.data() + row * outputs, part.data() + row * outputs);
  }
  expectClose(whole, part, 1e-6f);
  expectClose(wholePre, partPre, 1e-6f);
}

TEST(Blocks, panelsOfABfloat16LinearGiveWhatTheWholeDoes) {
  const auto backend = makeCpuBackend({.threads = 2});
  const auto stream = backend->makeStream();
  constexpr std::int64_t rows = 6, inputs = 2053, outputs = 4099;  // a panel has 2042 rows of the weight
  const auto input = rounded(drawn(rows * inputs, 1)), weight = rounded(drawn(outputs * inputs, 2));
  const auto wideInput = widened(input), wideWeight = widened(weight);
  std::vector<base::BFloat16> output(static_cast<std::size_t>(rows * outputs)), gradInput(input.size());
  auto wideOutput = empty(rows * outputs), wideGradInput = empty(rows * inputs);
  backend->run(Linear{.input = view(input, {rows, inputs}),
                      .weight = view(weight, {outputs, inputs}),
                      .output = view(output, {rows, outputs})},
               *stream);
  backend->run(Linear{.input = view(wideInput, {rows, inputs}),
                      .weight = view(wideWeight, {outputs, inputs}),
                      .output = view(wideOutput, {rows, outputs})},
               *stream);
  expectClose(widened(output), wideOutput, 8e-3f);
  const auto gradOutput = widened(output);
  backend->run(LinearBackwardInput{.gradOutput = view(output, {rows, outputs}),
                                   .weight = view(weight, {outputs, inputs}),
                                   .gradInput = view(gradInput, {rows, inputs})},
               *stream);
  backend->run(LinearBackwardInput{.gradOutput = view(gradOutput, {rows, outputs}),
                                   .weight = view(wideWeight, {outputs, inputs}),
                                   .gradInput = view(wideGradInput, {rows, inputs})},
               *stream);
  expectClose(widened(gradInput), wideGradInput, 8e-3f);
}

TEST(Blocks, sumsThatPromiseItAreTheSameBitsAtAnyThreadCount) {
  const auto values = drawn(300007, 1);
  const std::vector<std::int32_t> tokens = {1, 0, 1, 1, 2, 0, 1};
  const auto gradient = drawn(7 * 4096, 2);
  double firstNorm = 0;
  std::vector<float> firstTable;
  for (const int threads : {1, 2, 3, 5}) {
    const auto backend = makeCpuBackend({.threads = threads});
    const auto stream = backend->makeStream();
    double norm = 0;
    auto table = empty(3 * 4096);
    backend->run(SquaredNorm{view(values, {300007}), TensorView(&norm, DType::f64, Shape{1})}, *stream);
    backend->run(EmbeddingBackward{.tokens = view(tokens, {1, 7}),
                                   .gradOutput = view(gradient, {1, 7, 4096}),
                                   .gradWeight = view(table, {3, 4096})},
                 *stream);
    if (threads == 1) {
      firstNorm = norm;
      firstTable = table;
    }
    EXPECT_EQ(norm, firstNorm) << threads;
    EXPECT_EQ(table, firstTable) << threads;
  }
}

TEST(Backend, refusesANegativeNumberOfThreads) {
  try {
    makeCpuBackend({.threads = -1});
    FAIL();
  } catch (const base::Error& error) {
    EXPECT_EQ(error.kind(), base::ErrorKind::usage);
    EXPECT_NE(error.message().find("-1"), std::string::npos);
  }
}

}  // namespace
}  // namespace tandem::kernels::cpu::test
