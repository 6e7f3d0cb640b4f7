// Every target gives the same answers, to rounding.
#include "tests/kernels/cpu/targets.h"

#include <cmath>
#include <functional>
#include <map>

#include "kernels/cpu/processor.h"
#include "tests/kernels/cpu/values.h"

namespace tandem::kernels::cpu::test {
namespace {

constexpr std::int64_t rows = 5, width = 75, vocabulary = 43;

using Results = std::vector<std::vector<float>>;
using Work = std::function<Results(Backend&, Stream&)>;

std::vector<float> empty(std::int64_t count) { return std::vector<float>(static_cast<std::size_t>(count)); }

Results norm(Backend& backend, Stream& stream) {
  const auto input = drawn(rows * width, 1), weight = drawn(width, 2), bias = drawn(width, 3);
  const auto gradient = drawn(rows * width, 4);
  Results r = {empty(rows * width), empty(rows), empty(rows), empty(rows * width), empty(width), empty(width)};
  backend.run(Norm{.kind = NormKind::layer,
                   .input = view(input, {rows, width}),
                   .weight = view(weight, {width}),
                   .bias = view(bias, {width}),
                   .output = view(r[0], {rows, width}),
                   .mean = view(r[1], {rows}),
                   .reciprocal = view(r[2], {rows})},
              stream);
  backend.run(NormBackward{.kind = NormKind::layer,
                           .gradOutput = view(gradient, {rows, width}),
                           .input = view(input, {rows, width}),
                           .weight = view(weight, {width}),
                           .mean = view(r[1], {rows}),
                           .reciprocal = view(r[2], {rows}),
                           .gradInput = view(r[3], {rows, width}),
                           .gradWeight = view(r[4], {width}),
                           .gradBias = view(r[5], {width})},
              stream);
  return r;
}

Results linear(Backend& backend, Stream& stream) {
  const auto input = drawn(rows * width, 1), weight = drawn(vocabulary * width, 2), bias = drawn(vocabulary, 3);
  Results r = {empty(rows * vocabulary), empty(rows * vocabulary), empty(vocabulary * width), empty(vocabulary),
               empty(vocabulary)};
  const auto run = [&](std::int64_t count, std::vector<float>& output) {
    backend.run(Linear{.input = view(input, {count, width}),
                       .weight = view(weight, {vocabulary, width}),
                       .bias = view(bias, {vocabulary}),
                       .activation = ActivationKind::geluTanh,
                       .output = view(output, {count, vocabulary})},
                stream);
  };
  run(rows, r[0]);
  run(1, r[4]);
  backend.run(LinearBackwardWeight{.gradOutput = view(r[0], {rows, vocabulary}),
                                   .input = view(input, {rows, width}),
                                   .gradWeight = view(r[2], {vocabulary, width}),
                                   .gradBias = view(r[3], {vocabulary})},
              stream);
  return r;
}

Results crossEntropy(Backend& backend, Stream& stream) {
  const auto input = drawn(rows * width, 1), weight = drawn(vocabulary * width, 2);
  const std::vector<std::int32_t> targets = {0, 42, -1, 7, 7};
  const std::vector<float> gradScale = {0.25f};
  Results r = {empty(rows), empty(rows * width), empty(vocabulary * width)};
  backend.run(LinearCrossEntropy{.input = view(input, {rows, width}),
                                 .weight = view(weight, {vocabulary, width}),
                                 .targets = view(targets, {rows}),
                                 .gradScale = view(gradScale, {1}),
                                 .losses = view(r[0], {rows}),
                                 .gradInput = view(r[1], {rows, width}),
                                 .gradWeight = view(r[2], {vocabulary, width})},
              stream);
  return r;
}

Results swiglu(Backend& backend, Stream& stream) {
  const auto input = drawn(rows * 2 * width, 1, 6.0f), gradient = drawn(rows * width, 2);
  Results r = {empty(rows * width), empty(rows * 2 * width)};
  backend.run(Activation{ActivationKind::swiglu, view(input, {rows, 2 * width}), view(r[0], {rows, width})}, stream);
  backend.run(ActivationBackward{ActivationKind::swiglu, view(gradient, {rows, width}), view(input, {rows, 2 * width}),
                                 view(r[1], {rows, 2 * width})},
              stream);
  return r;
}

Results adamW(Backend& backend, Stream& stream) {
  const auto gradient = drawn(width, 1);
  Results r = {drawn(width, 2), drawn(width, 3), empty(width)};
  r[2] = drawn(width, 4);
  for (float& value : r[2]) value = std::abs(value);
  backend.run(AdamW{.gradient = view(gradient, {width}),
                    .weight = view(r[0], {width}),
                    .firstMoment = view(r[1], {width}),
                    .secondMoment = view(r[2], {width}),
                    .learningRate = 0.01f,
                    .weightDecay = 0.1f,
                    .step = 3},
              stream);
  return r;
}

Results embeddingGradient(Backend& backend, Stream& stream) {
  const std::vector<std::int32_t> tokens = {3, 1, 3, 0, 3};
  const auto gradient = drawn(rows * width, 1);
  Results r = {empty(4 * width)};
  backend.run(EmbeddingBackward{.tokens = view(tokens, {1, rows}),
                                .gradOutput = view(gradient, {1, rows, width}),
                                .gradWeight = view(r[0], {4, width})},
              stream);
  return r;
}

void expectClose(const Results& values, const Results& wanted, const std::string& where) {
  ASSERT_EQ(values.size(), wanted.size());
  for (std::size_t r = 0; r < values.size(); ++r) {
    for (std::size_t i = 0; i < values[r].size(); ++i) {
      ASSERT_NEAR(values[r][i], wanted[r][i], 1e-5f * (1 + std::abs(wanted[r][i])))
          << where << ", result " << r << " at " << i;
    }
  }
}

TEST(Targets, allGiveTheSameAnswers) {
  const std::map<std::string, Work> works = {{"norm", norm},     {"linear", linear}, {"cross entropy", crossEntropy},
                                             {"swiglu", swiglu}, {"AdamW", adamW},   {"embedding", embeddingGradient}};
  const auto backend = makeCpuBackend({.threads = 2});
  const auto stream = backend->makeStream();
  std::map<std::string, Results> best;
  for (const auto& [name, work] : works) best[name] = work(*backend, *stream);
  int targets = 0;
  onEveryTarget([&](const std::string& target) {
    ++targets;
    for (const auto& [name, work] : works) expectClose(work(*backend, *stream), best[name], target + ", " + name);
  });
  EXPECT_GE(targets, 1);
}

TEST(Targets, areNamedInTheDescriptionOfTheBackend) {
  const auto backend = makeCpuBackend({.threads = 2});
  onEveryTarget([&](const std::string& target) {
    EXPECT_EQ(simdTarget(), target);
    EXPECT_NE(backend->description().find(target), std::string::npos) << backend->description();
  });
  EXPECT_NE(backend->description().find("2 threads"), std::string::npos) << backend->description();
}

}  // namespace
}  // namespace tandem::kernels::cpu::test
