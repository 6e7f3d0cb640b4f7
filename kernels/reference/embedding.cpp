#include "kernels/reference/access.h"
#include "kernels/reference/operators.h"

namespace tandem::kernels::reference {

void run(const Embedding& op) {
  const Index width = op.weight.shape[1];
  const Index rows = op.tokens.shape.count();
  for (Index row = 0; row < rows; ++row) {
    const Index token = loadIndex(op.tokens, row);
    for (Index i = 0; i < width; ++i) {
      double value = load(op.weight, token * width + i);
      if (op.positionWeight) value += load(op.positionWeight, loadIndex(op.positions, row) * width + i);
      store(op.output, row * width + i, value);
    }
  }
}

namespace {

// table[indices[row]] += gradOutput[row], in the order of the rows.
void scatter(const ConstTensorView& indices, const ConstTensorView& gradOutput, const TensorView& table,
             bool accumulate) {
  const Index width = table.shape[1];
  const Index rows = indices.shape.count();
  for (Index entry = 0; entry < table.shape[0]; ++entry) {
    for (Index i = 0; i < width; ++i) {
      double sum = 0;
      for (Index row = 0; row < rows; ++row) {
        if (loadIndex(indices, row) == entry) sum += load(gradOutput, row * width + i);
      }
      storeOrAdd(table, entry * width + i, sum, accumulate);
    }
  }
}

}  // namespace

void run(const EmbeddingBackward& op) {
  scatter(op.tokens, op.gradOutput, op.gradWeight, op.accumulateWeight);
  if (op.gradPositionWeight) {
    scatter(op.positions, op.gradOutput, op.gradPositionWeight, op.accumulatePositionWeight);
  }
}

}  // namespace tandem::kernels::reference
