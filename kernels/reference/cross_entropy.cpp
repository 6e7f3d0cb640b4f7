#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/reference/access.h"
#include "kernels/reference/operators.h"

namespace tandem::kernels::reference {

// The gradient of a row's loss with respect to its logits is softmax(logits) - [v == target].
void run(const LinearCrossEntropy& op) {
  const Index rows = op.input.shape.rows(), width = op.weight.shape[1], vocabulary = op.weight.shape[0];
  const double gradScale = op.gradInput ? load(op.gradScale, 0) : 0;
  std::vector<double> gradWeight(op.gradWeight ? static_cast<std::size_t>(vocabulary * width) : 0);
  for (Index row = 0; row < rows; ++row) {
    const Index target = loadIndex(op.targets, row);
    std::vector<double> gradInput(static_cast<std::size_t>(width));
    if (target < 0) {
      store(op.losses, row, 0);
    } else {
      std::vector<double> logits(static_cast<std::size_t>(vocabulary));
      double largest = -std::numeric_limits<double>::infinity(), sum = 0;
      for (Index v = 0; v < vocabulary; ++v) {
        double& logit = logits[static_cast<std::size_t>(v)];
        for (Index i = 0; i < width; ++i) logit += load(op.input, row * width + i) * load(op.weight, v * width + i);
        largest = std::max(largest, logit);
      }
      for (const double logit : logits) sum += std::exp(logit - largest);
      const double logSumExp = largest + std::log(sum);
      store(op.losses, row, logSumExp - logits[static_cast<std::size_t>(target)]);
      if (op.gradInput) {
        for (Index v = 0; v < vocabulary; ++v) {
          const double probability = std::exp(logits[static_cast<std::size_t>(v)] - logSumExp);
          const double gradLogit = gradScale * (probability - (v == target ? 1 : 0));
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

}  // namespace tandem::kernels::reference
