#include <bit>
#include <cmath>
#include <vector>

#include "common/base/random.h"
#include "kernels/adamw_factors.h"
#include "kernels/reference/access.h"
#include "kernels/reference/operators.h"

namespace tandem::kernels::reference {

namespace {

// One of the two bfloat16 around a value, by 16 random bits.
base::BFloat16 roundedBy(std::uint32_t random, float value) {
  if (std::isnan(value)) return base::BFloat16(value);
  base::BFloat16 result;
  result.bits = static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(value) + random) >> 16);
  return result;
}

// Float32 in the order that the contract gives: the bits themselves are what other backends are compared with.
void runWithRoundedMoments(const AdamW& op) {
  const AdamWFactors f = factorsOf(op);
  const auto* gradient = static_cast<const float*>(op.gradient.data);
  auto* weight = static_cast<float*>(op.weight.data);
  auto* first = static_cast<base::BFloat16*>(op.firstMoment.data);
  auto* second = static_cast<base::BFloat16*>(op.secondMoment.data);
  for (Index i = 0; i < op.weight.shape.count(); ++i) {
    const float g = gradient[i] * f.gradientScale;
    const float m = std::fma(f.beta1, static_cast<float>(first[i]), f.first * g);
    const float v = std::fma(f.beta2, static_cast<float>(second[i]), f.second * g * g);
    const float update = f.stepSize * m / (std::sqrt(v * f.secondCorrection) + f.epsilon);
    weight[i] -= std::fma(f.decay, weight[i], update);
    const auto element = static_cast<std::uint64_t>(op.rounding.firstElement + i);
    const std::uint32_t word = base::philox(op.rounding.key, element / 4, op.rounding.stream)[element % 4];
    first[i] = roundedBy(word & 0xffffu, m);
    second[i] = roundedBy(word >> 16, v);
    if (op.lowWeight) store(op.lowWeight, i, static_cast<double>(weight[i]));
  }
}

}  // namespace

void run(const AdamW& op) {
  if (op.firstMoment.type == DType::bf16) return runWithRoundedMoments(op);
  const double beta1 = op.beta1, beta2 = op.beta2;
  const double correction1 = 1 - std::pow(beta1, static_cast<double>(op.step));
  const double correction2 = 1 - std::pow(beta2, static_cast<double>(op.step));
  for (Index i = 0; i < op.weight.shape.count(); ++i) {
    const double gradient = load(op.gradient, i) * op.gradientScale;
    const double first = beta1 * load(op.firstMoment, i) + (1 - beta1) * gradient;
    const double second = beta2 * load(op.secondMoment, i) + (1 - beta2) * gradient * gradient;
    const double old = load(op.weight, i);
    const double update = (first / correction1) / (std::sqrt(second / correction2) + op.epsilon);
    const double weight = old - op.learningRate * (update + op.weightDecay * old);
    store(op.firstMoment, i, first);
    store(op.secondMoment, i, second);
    store(op.weight, i, weight);
    if (op.lowWeight) store(op.lowWeight, i, load(op.weight, i));
  }
}

namespace {

struct Matrix {
  Index rows, columns;
  std::vector<double> values = std::vector<double>(static_cast<std::size_t>(rows * columns));
  double& at(Index row, Index column) { return values[static_cast<std::size_t>(row * columns + column)]; }
  double at(Index row, Index column) const { return values[static_cast<std::size_t>(row * columns + column)]; }
};

Matrix multiply(const Matrix& a, const Matrix& b) {
  Matrix product{a.rows, b.columns};
  for (Index i = 0; i < a.rows; ++i) {
    for (Index j = 0; j < b.columns; ++j) {
      for (Index k = 0; k < a.columns; ++k) product.at(i, j) += a.at(i, k) * b.at(k, j);
    }
  }
  return product;
}

Matrix transpose(const Matrix& a) {
  Matrix result{a.columns, a.rows};
  for (Index i = 0; i < a.rows; ++i) {
    for (Index j = 0; j < a.columns; ++j) result.at(j, i) = a.at(i, j);
  }
  return result;
}

}  // namespace

void run(const NewtonSchulz& op) {
  constexpr double a = 3.4445, b = -4.7750, c = 2.0315;
  Matrix x{op.matrix.shape[0], op.matrix.shape[1]};
  double squares = 0;
  for (Index i = 0; i < op.matrix.shape.count(); ++i) squares += load(op.matrix, i) * load(op.matrix, i);
  // A matrix of zeros has no direction; it stays one.
  const double norm = squares == 0 ? 1 : std::sqrt(squares);
  for (std::size_t i = 0; i < x.values.size(); ++i) x.values[i] = load(op.matrix, static_cast<Index>(i)) / norm;

  for (Index iteration = 0; iteration < op.iterations; ++iteration) {
    const Matrix gram = multiply(x, transpose(x)), gramSquared = multiply(gram, gram);
    Matrix mix = gram;
    for (std::size_t i = 0; i < mix.values.size(); ++i) mix.values[i] = b * gram.values[i] + c * gramSquared.values[i];
    const Matrix change = multiply(mix, x);
    for (std::size_t i = 0; i < x.values.size(); ++i) x.values[i] = a * x.values[i] + change.values[i];
  }
  for (std::size_t i = 0; i < x.values.size(); ++i) store(op.output, static_cast<Index>(i), x.values[i]);
}

}  // namespace tandem::kernels::reference
