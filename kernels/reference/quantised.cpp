#include "kernels/reference/access.h"
#include "kernels/reference/activation_function.h"
#include "kernels/reference/operators.h"

namespace tandem::kernels::reference {

namespace {

// Byte `at` of a row's codes, where the interleaving of eight rows has put it.
std::uint8_t codeByte(const QuantisedMatrix& matrix, Index row, Index at) {
  const Index words = codeBytesOfRow(matrix.format, matrix.inputs) / 4;
  const Index word = (row / quantisedBlock * words + at / 4) * quantisedBlock + row % quantisedBlock;
  return static_cast<const std::uint8_t*>(matrix.codes.data)[word * 4 + at % 4];
}

double valueAt(const QuantisedMatrix& matrix, Index row, Index column) {
  if (matrix.format == QuantisedFormat::int8) {
    const auto code = static_cast<std::int8_t>(codeByte(matrix, row, column));
    return code * load(matrix.scales, row);  // scales of blocks of eight lie one after another
  }
  const Index group = column / quantisedGroup, within = column % quantisedGroup, half = quantisedGroup / 2;
  const std::uint8_t both = codeByte(matrix, row, group * half + within % half);
  const int code = within < half ? both % 16 : both / 16;
  const Index groups = quantisedGroups(matrix.inputs);
  const Index scale = ((row / quantisedBlock * groups + group) * 2) * quantisedBlock + row % quantisedBlock;
  return code * load(matrix.scales, scale) + load(matrix.scales, scale + quantisedBlock);
}

}  // namespace

void run(const QuantisedLinear& op) {
  const Index rows = op.input.shape.rows(), inputs = op.weight.inputs, outputs = op.weight.outputs;
  for (Index row = 0; row < rows; ++row) {
    for (Index out = 0; out < outputs; ++out) {
      double sum = op.bias ? load(op.bias, out) : 0;
      for (Index in = 0; in < inputs; ++in) sum += load(op.input, row * inputs + in) * valueAt(op.weight, out, in);
      store(op.output, row * outputs + out, activate(op.activation, sum));
    }
  }
}

void run(const QuantisedEmbedding& op) {
  const Index rows = op.tokens.shape.count(), width = op.weight.inputs;
  for (Index row = 0; row < rows; ++row) {
    const Index token = loadIndex(op.tokens, row);
    for (Index i = 0; i < width; ++i) {
      double value = valueAt(op.weight, token, i);
      if (op.positionWeight) value += load(op.positionWeight, loadIndex(op.positions, row) * width + i);
      store(op.output, row * width + i, value);
    }
  }
}

void run(const Dequantise& op) {
  for (Index row = 0; row < op.matrix.outputs; ++row) {
    for (Index column = 0; column < op.matrix.inputs; ++column) {
      store(op.output, row * op.matrix.inputs + column, valueAt(op.matrix, row, column));
    }
  }
}

}  // namespace tandem::kernels::reference
