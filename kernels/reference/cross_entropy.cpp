#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/reference/access.h"
#include "kernels/reference/operators.h"

namespace tandem::kernels::reference {

namespace {

std::vector<double> logitsOf(const ConstTensorView& input, const ConstTensorView& weight, Index row) {
  const Index width = weight.shape[1], vocabulary = weight.shape[0];
  std::vector<double> logits(static_cast<std::size_t>(vocabulary));
  for (Index v = 0; v < vocabulary; ++v) {
    double& logit = logits[static_cast<std::size_t>(v)];
    for (Index i = 0; i < width; ++i) logit += load(input, row * width + i) * load(weight, v * width + i);
  }
  return logits;
}

double logSumExpOf(const std::vector<double>& values) {
  double largest = -std::numeric_limits<double>::infinity(), sum = 0;
  for (const double value : values) largest = std::max(largest, value);
  for (const double value : values) sum += std::exp(value - largest);
  return largest + std::log(sum);
}

}  // namespace

// The gradient of a row's loss with respect to its logits is softmax(logits) - [v == target].
void run(const LinearCrossEntropy& op) {
  const Index rows = op.input.shape.rows(), width = op.weight.shape[1], vocabulary = op.weight.shape[0];
  std::vector<double> gradWeight(op.gradWeight ? static_cast<std::size_t>(vocabulary * width) : 0);
  for (Index row = 0; row < rows; ++row) {
    const Index target = loadIndex(op.targets, row);
    const Index scaleIndex = op.gradInput && op.gradScale.shape.count() > 1 ? row : 0;
    std::vector<double> gradInput(static_cast<std::size_t>(width));
    if (target < 0) {
      store(op.losses, row, 0);
    } else {
      const std::vector<double> logits = logitsOf(op.input, op.weight, row);
      const double logSumExp = logSumExpOf(logits);
      store(op.losses, row, logSumExp - logits[static_cast<std::size_t>(target)]);
      if (op.gradInput) {
        for (Index v = 0; v < vocabulary; ++v) {
          const double probability = std::exp(logits[static_cast<std::size_t>(v)] - logSumExp);
          const double gradLogit = load(op.gradScale, scaleIndex) * (probability - (v == target ? 1 : 0));
          for (Index i = 0; i < width; ++i) {
            gradInput[static_cast<std::size_t>(i)] += gradLogit * load(op.weight, v * width + i);
            if (op.gradWeight) {
              gradWeight[static_cast<std::size_t>(v * width + i)] += gradLogit * load(op.input, row * width + i);
            }
          }
        }
      }
    }
    if (op.gradInput) {
      for (Index i = 0; i < width; ++i) store(op.gradInput, row * width + i, gradInput[static_cast<std::size_t>(i)]);
    }
  }
  for (std::size_t i = 0; i < gradWeight.size(); ++i) {
    storeOrAdd(op.gradWeight, static_cast<Index>(i), gradWeight[i], op.accumulateWeight);
  }
}

void run(const PartialCrossEntropy& op) {
  const Index rows = op.input.shape.rows();
  for (Index row = 0; row < rows; ++row) {
    const Index target = loadIndex(op.targets, row) - op.firstToken;
    const bool counts = loadIndex(op.targets, row) >= 0;
    const std::vector<double> logits = logitsOf(op.input, op.weight, row);
    const bool isHere = counts && target >= 0 && target < op.weight.shape[0];
    store(op.partials, row, counts ? logSumExpOf(logits) : 0);
    store(op.partials, rows + row, isHere ? logits[static_cast<std::size_t>(target)] : 0);
  }
}

void run(const MergeCrossEntropy& op) {
  const Index rows = op.targets.shape.count(), parts = op.partials.shape[0];
  for (Index row = 0; row < rows; ++row) {
    std::vector<double> sums;
    double wanted = 0;
    for (Index part = 0; part < parts; ++part) {
      sums.push_back(load(op.partials, part * 2 * rows + row));
      wanted += load(op.partials, (part * 2 + 1) * rows + row);
    }
    const bool counts = loadIndex(op.targets, row) >= 0;
    store(op.logSumExp, row, counts ? logSumExpOf(sums) : 0);
    store(op.losses, row, counts ? logSumExpOf(sums) - wanted : 0);
  }
}

void run(const PartialCrossEntropyBackward& op) {
  const Index rows = op.input.shape.rows(), width = op.weight.shape[1], vocabulary = op.weight.shape[0];
  std::vector<double> gradWeight(op.gradWeight ? static_cast<std::size_t>(vocabulary * width) : 0);
  for (Index row = 0; row < rows; ++row) {
    std::vector<double> gradInput(static_cast<std::size_t>(width));
    const bool counts = loadIndex(op.targets, row) >= 0;
    const std::vector<double> logits = counts ? logitsOf(op.input, op.weight, row) : std::vector<double>();
    for (Index v = 0; v < std::ssize(logits); ++v) {
      const double probability = std::exp(logits[static_cast<std::size_t>(v)] - load(op.logSumExp, row));
      const bool isTarget = loadIndex(op.targets, row) - op.firstToken == v;
      const double gradLogit = load(op.gradScale, 0) * (probability - (isTarget ? 1 : 0));
      for (Index i = 0; i < width; ++i) {
        gradInput[static_cast<std::size_t>(i)] += gradLogit * load(op.weight, v * width + i);
        if (!op.gradWeight) continue;
        gradWeight[static_cast<std::size_t>(v * width + i)] += gradLogit * load(op.input, row * width + i);
      }
    }
    for (Index i = 0; i < width; ++i) store(op.gradInput, row * width + i, gradInput[static_cast<std::size_t>(i)]);
  }
  for (std::size_t i = 0; i < gradWeight.size(); ++i) {
    storeOrAdd(op.gradWeight, static_cast<Index>(i), gradWeight[i], op.accumulateWeight);
  }
}

}  // namespace tandem::kernels::reference
