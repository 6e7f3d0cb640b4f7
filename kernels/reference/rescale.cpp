#include <cmath>
#include <vector>

#include "kernels/reference/access.h"
#include "kernels/reference/operators.h"
#include "kernels/row_stretch.h"

namespace tandem::kernels::reference {
namespace {

template <class Operator>
double stretchOf(const Operator& op, Index column) {
  return rowStretch(load(op.norms, column), load(op.gain, column), load(op.changedNorms, column));
}

}  // namespace

void run(const RowNorms& op) {
  const Index rows = op.matrix.shape[0], width = op.matrix.shape[1];
  for (Index row = 0; row < rows; ++row) {
    double squares = 0, changedSquares = 0;
    for (Index i = row * width; i < (row + 1) * width; ++i) {
      const double value = load(op.matrix, i);
      const double changed = value + static_cast<double>(op.factor) * load(op.change, i);
      squares += value * value;
      changedSquares += changed * changed;
    }
    store(op.norms, row, std::sqrt(squares));
    store(op.changedNorms, row, std::sqrt(changedSquares));
  }
}

void run(const Rescale& op) {
  const Index width = op.gain.shape.count();
  for (Index i = 0; i < op.output.shape.count(); ++i) {
    const double bias = op.bias ? load(op.bias, i % width) : 0;
    store(op.output, i, stretchOf(op, i % width) * load(op.input, i) + bias);
  }
}

void run(const RescaleBackward& op) {
  const Index width = op.gain.shape.count();
  std::vector<double> sums(static_cast<std::size_t>(width));
  for (Index i = 0; i < op.gradInput.shape.count(); ++i) {
    const Index column = i % width;
    const double gradient = load(op.gradOutput, i);
    sums[static_cast<std::size_t>(column)] +=
        gradient * load(op.input, i) * rowReciprocal(load(op.changedNorms, column));
    store(op.gradInput, i, stretchOf(op, column) * gradient);
  }
  for (Index i = 0; i < width; ++i) {
    storeOrAdd(op.gradGain, i, sums[static_cast<std::size_t>(i)], op.accumulate);
  }
}

}  // namespace tandem::kernels::reference
