#include "kernels/reference/access.h"
#include "kernels/reference/operators.h"

namespace tandem::kernels::reference {

namespace {

// Of a table's row; zero where that is outside of the part that is here.
double entry(const ConstTensorView& table, Index row, Index column) {
  return row >= 0 && row < table.shape[0] ? load(table, row * table.shape[1] + column) : 0;
}

}  // namespace

void run(const Embedding& op) {
  const Index width = op.weight.shape[1];
  const Index rows = op.tokens.shape.count();
  for (Index row = 0; row < rows; ++row) {
    const Index token = loadIndex(op.tokens, row) - op.part.firstToken;
    for (Index i = 0; i < width; ++i) {
      double value = entry(op.weight, token, i);
      if (op.positionWeight) {
        value += entry(op.positionWeight, loadIndex(op.positions, row) - op.part.firstPosition, i);
      }
      store(op.output, row * width + i, value);
    }
  }
}

namespace {

// table[indices[row] - first] += gradOutput[row], in the order of the rows.
void scatter(const ConstTensorView& indices, Index first, const ConstTensorView& gradOutput, const TensorView& table,
             bool accumulate) {
  const Index width = table.shape[1];
  const Index rows = indices.shape.count();
  for (Index place = 0; place < table.shape[0]; ++place) {
    for (Index i = 0; i < width; ++i) {
      double sum = 0;
      for (Index row = 0; row < rows; ++row) {
        if (loadIndex(indices, row) - first == place) sum += load(gradOutput, row * width + i);
      }
      storeOrAdd(table, place * width + i, sum, accumulate);
    }
  }
}

}  // namespace

void run(const EmbeddingBackward& op) {
  scatter(op.tokens, op.part.firstToken, op.gradOutput, op.gradWeight, op.accumulateWeight);
  if (op.gradPositionWeight) {
    scatter(op.positions, op.part.firstPosition, op.gradOutput, op.gradPositionWeight, op.accumulatePositionWeight);
  }
}

}  // namespace tandem::kernels::reference
