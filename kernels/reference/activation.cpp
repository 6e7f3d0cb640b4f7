#include "kernels/reference/activation_function.h"

#include "kernels/dropout_mask.h"
#include "kernels/reference/access.h"
#include "kernels/reference/operators.h"

namespace tandem::kernels::reference {

namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

void run(const Activation& op) {
  const Index rows = op.output.shape.rows(), width = op.output.shape.last();
  for (Index row = 0; row < rows; ++row) {
    for (Index i = 0; i < width; ++i) {
      if (op.kind == ActivationKind::swiglu) {
        const double gate = load(op.input, row * 2 * width + i), up = load(op.input, row * 2 * width + width + i);
        store(op.output, row * width + i, gate * sigmoid(gate) * up);
      } else {
        store(op.output, row * width + i, activate(op.kind, load(op.input, row * width + i)));
      }
    }
  }
}

void run(const ActivationBackward& op) {
  const Index rows = op.gradOutput.shape.rows(), width = op.gradOutput.shape.last();
  for (Index row = 0; row < rows; ++row) {
    for (Index i = 0; i < width; ++i) {
      const double gradient = load(op.gradOutput, row * width + i);
      if (op.kind == ActivationKind::swiglu) {
        const Index gateAt = row * 2 * width + i, upAt = gateAt + width;
        const double gate = load(op.input, gateAt), up = load(op.input, upAt), s = sigmoid(gate);
        store(op.gradInput, gateAt, gradient * up * s * (1 + gate * (1 - s)));
        store(op.gradInput, upAt, gradient * gate * s);
      } else {
        store(op.gradInput, row * width + i, gradient * activateDerivative(op.kind, load(op.input, row * width + i)));
      }
    }
  }
}

void run(const Dropout& op) {
  const Index width = op.input.shape.last();
  for (Index i = 0; i < op.output.shape.count(); ++i) {
    const Index row = i / width;
    bool dropped = false;
    if (op.keys) {
      const auto* keys = static_cast<const std::int32_t*>(op.keys.data);
      const std::uint64_t stream = dropoutStream(keys[2 * row], keys[2 * row + 1], op.purpose);
      dropped = isDropped(stream, static_cast<std::uint64_t>(i - row * width), dropoutThreshold(op.rate));
    }
    store(op.output, i, dropped ? 0.0 : load(op.input, i) * static_cast<double>(op.factor));
  }
}

void run(const Add& op) {
  for (Index i = 0; i < op.output.shape.count(); ++i) store(op.output, i, load(op.left, i) + load(op.right, i));
}

}  // namespace tandem::kernels::reference
