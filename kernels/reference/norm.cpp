#include <cmath>
#include <vector>

#include "kernels/reference/access.h"
#include "kernels/reference/operators.h"

namespace tandem::kernels::reference {

void run(const Norm& op) {
  const Index width = op.weight.shape.last();
  const Index rows = op.output.shape.rows();
  for (Index row = 0; row < rows; ++row) {
    const Index begin = row * width;
    if (op.residual) {
      for (Index i = begin; i < begin + width; ++i) store(op.sum, i, load(op.input, i) + load(op.residual, i));
    }
    // The sum as it was stored, for that is what the backward pass will see.
    const ConstTensorView input = op.residual ? ConstTensorView(op.sum) : op.input;

    double mean = 0;
    if (op.kind == NormKind::layer) {
      for (Index i = begin; i < begin + width; ++i) mean += load(input, i);
      mean /= static_cast<double>(width);
    }
    double variance = 0;
    for (Index i = begin; i < begin + width; ++i) variance += (load(input, i) - mean) * (load(input, i) - mean);
    variance /= static_cast<double>(width);
    const double reciprocal = 1 / std::sqrt(variance + op.epsilon);

    for (Index i = 0; i < width; ++i) {
      const double bias = op.bias ? load(op.bias, i) : 0;
      store(op.output, begin + i, (load(input, begin + i) - mean) * reciprocal * load(op.weight, i) + bias);
    }
    if (op.kind == NormKind::layer) store(op.mean, row, mean);
    store(op.reciprocal, row, reciprocal);
  }
}

// With n = (x - mean) * reciprocal and g = gradOutput * weight:
//   gradInput = reciprocal * (g - average(g) - n * average(g * n)), without average(g) for rms.
void run(const NormBackward& op) {
  const Index width = op.weight.shape.last();
  const Index rows = op.gradOutput.shape.rows();
  std::vector<double> gradWeight(static_cast<std::size_t>(width)), gradBias(static_cast<std::size_t>(width));
  for (Index row = 0; row < rows; ++row) {
    const double mean = op.kind == NormKind::layer ? load(op.mean, row) : 0;
    const double reciprocal = load(op.reciprocal, row);
    const auto normalised = [&](Index i) { return (load(op.input, row * width + i) - mean) * reciprocal; };
    const auto gradient = [&](Index i) { return load(op.gradOutput, row * width + i) * load(op.weight, i); };

    double averageGradient = 0, averageProduct = 0;
    for (Index i = 0; i < width; ++i) {
      if (op.kind == NormKind::layer) averageGradient += gradient(i) / static_cast<double>(width);
      averageProduct += gradient(i) * normalised(i) / static_cast<double>(width);
      gradWeight[static_cast<std::size_t>(i)] += load(op.gradOutput, row * width + i) * normalised(i);
      gradBias[static_cast<std::size_t>(i)] += load(op.gradOutput, row * width + i);
    }
    for (Index i = 0; i < width; ++i) {
      const double passing = op.gradSum ? load(op.gradSum, row * width + i) : 0;
      store(op.gradInput, row * width + i,
            reciprocal * (gradient(i) - averageGradient - normalised(i) * averageProduct) + passing);
    }
  }
  for (Index i = 0; i < width; ++i) {
    storeOrAdd(op.gradWeight, i, gradWeight[static_cast<std::size_t>(i)], op.accumulate);
    if (op.gradBias) storeOrAdd(op.gradBias, i, gradBias[static_cast<std::size_t>(i)], op.accumulate);
  }
}

}  // namespace tandem::kernels::reference
