#include <cmath>
#include <vector>

#include "kernels/reference/access.h"
#include "kernels/reference/operators.h"

namespace tandem::kernels::reference {

namespace {

using Head = std::vector<double>;

Head loadHead(const ConstTensorView& view, Index begin, Index headSize) {
  Head head;
  for (Index i = 0; i < headSize; ++i) head.push_back(load(view, begin + i));
  return head;
}

// Turns the pairs (i, i + headSize/2) by direction * position * frequencies[i].
void rotate(Head& head, double position, double direction, const ConstTensorView& frequencies) {
  const std::size_t half = head.size() / 2;
  for (std::size_t i = 0; i < half; ++i) {
    const double angle = direction * position * load(frequencies, static_cast<Index>(i));
    const double first = head[i], second = head[i + half];
    head[i] = first * std::cos(angle) - second * std::sin(angle);
    head[i + half] = first * std::sin(angle) + second * std::cos(angle);
  }
}

}  // namespace

void run(const Rotary& op) {
  const HeadLayout& layout = op.layout;
  const Index rows = op.input.shape.rows(), turned = layout.heads + layout.kvHeads, size = layout.headSize;
  for (Index row = 0; row < rows; ++row) {
    const double position = static_cast<double>(loadIndex(op.positions, row));
    for (Index h = 0; h < turned + layout.kvHeads; ++h) {
      const Index begin = row * layout.width() + h * size;
      Head head = loadHead(op.input, begin, size);
      if (h < turned && op.queryWeight) {
        const ConstTensorView& weight = h < layout.heads ? op.queryWeight : op.keyWeight;
        double squares = 0;
        for (const double value : head) squares += value * value;
        const double reciprocal = 1 / std::sqrt(squares / static_cast<double>(size) + op.epsilon);
        for (Index i = 0; i < size; ++i) head[static_cast<std::size_t>(i)] *= reciprocal * load(weight, i);
        store(op.reciprocal, row * turned + h, reciprocal);
      }
      if (h < turned) rotate(head, position, 1, op.frequencies);
      for (Index i = 0; i < size; ++i) store(op.output, begin + i, head[static_cast<std::size_t>(i)]);
    }
  }
}

namespace {

// The gradient of one head's RMS norm (see NormBackward): turns `gradient` from that of the scaled values into that of
// the input, and adds the gradient of the weights to `gradWeight`.
void normBackward(Head& gradient, const Head& input, double reciprocal, const ConstTensorView& weight,
                  Head& gradWeight) {
  double averageProduct = 0;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    gradWeight[i] += gradient[i] * input[i] * reciprocal;
    gradient[i] *= load(weight, static_cast<Index>(i));
    averageProduct += gradient[i] * input[i] * reciprocal / static_cast<double>(gradient.size());
  }
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] = reciprocal * (gradient[i] - input[i] * reciprocal * averageProduct);
  }
}

}  // namespace

void run(const RotaryBackward& op) {
  const HeadLayout& layout = op.layout;
  const Index rows = op.gradOutput.shape.rows(), turned = layout.heads + layout.kvHeads, size = layout.headSize;
  Head gradQueryWeight(static_cast<std::size_t>(size)), gradKeyWeight(static_cast<std::size_t>(size));
  for (Index row = 0; row < rows; ++row) {
    const double position = static_cast<double>(loadIndex(op.positions, row));
    for (Index h = 0; h < turned + layout.kvHeads; ++h) {
      const Index begin = row * layout.width() + h * size;
      Head gradient = loadHead(op.gradOutput, begin, size);
      if (h < turned) rotate(gradient, position, -1, op.frequencies);
      if (h < turned && op.queryWeight) {
        const bool isQuery = h < layout.heads;
        normBackward(gradient, loadHead(op.input, begin, size), load(op.reciprocal, row * turned + h),
                     isQuery ? op.queryWeight : op.keyWeight, isQuery ? gradQueryWeight : gradKeyWeight);
      }
      for (Index i = 0; i < size; ++i) store(op.gradInput, begin + i, gradient[static_cast<std::size_t>(i)]);
    }
  }
  if (!op.queryWeight) return;
  for (Index i = 0; i < size; ++i) {
    storeOrAdd(op.gradQueryWeight, i, gradQueryWeight[static_cast<std::size_t>(i)], op.accumulate);
    storeOrAdd(op.gradKeyWeight, i, gradKeyWeight[static_cast<std::size_t>(i)], op.accumulate);
  }
}

}  // namespace tandem::kernels::reference
