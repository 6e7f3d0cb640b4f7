#include "kernels/reference/access.h"
#include "kernels/reference/activation_function.h"
#include "kernels/reference/operators.h"

namespace tandem::kernels::reference {

void run(const Linear& op) {
  if (op.fp8) return runFp8(op);
  const Index rows = op.input.shape.rows(), inputs = op.weight.shape[1], outputs = op.weight.shape[0];
  for (Index row = 0; row < rows; ++row) {
    for (Index out = 0; out < outputs; ++out) {
      double sum = op.bias ? load(op.bias, out) : 0;
      for (Index in = 0; in < inputs; ++in)
        sum += load(op.input, row * inputs + in) * load(op.weight, out * inputs + in);
      if (op.preActivation) store(op.preActivation, row * outputs + out, sum);
      store(op.output, row * outputs + out, activate(op.activation, sum));
    }
  }
}

void run(const LinearBackwardInput& op) {
  if (op.fp8) return runFp8(op);
  const Index rows = op.gradOutput.shape.rows(), inputs = op.weight.shape[1], outputs = op.weight.shape[0];
  for (Index row = 0; row < rows; ++row) {
    for (Index in = 0; in < inputs; ++in) {
      double sum = 0;
      for (Index out = 0; out < outputs; ++out) {
        sum += load(op.gradOutput, row * outputs + out) * load(op.weight, out * inputs + in);
      }
      if (op.activation != ActivationKind::none) {
        sum *= activateDerivative(op.activation, load(op.preActivation, row * inputs + in));
      }
      storeOrAdd(op.gradInput, row * inputs + in, sum, op.accumulate);
    }
  }
}

void biasGradient(const LinearBackwardWeight& op) {
  const Index rows = op.gradOutput.shape.rows(), outputs = op.gradBias.shape.count();
  for (Index out = 0; out < outputs; ++out) {
    double sum = 0;
    for (Index row = 0; row < rows; ++row) sum += load(op.gradOutput, row * outputs + out);
    storeOrAdd(op.gradBias, out, sum, op.accumulate);
  }
}

void run(const LinearBackwardWeight& op) {
  if (op.fp8) return runFp8(op);
  const Index rows = op.gradOutput.shape.rows(), inputs = op.gradWeight.shape[1], outputs = op.gradWeight.shape[0];
  for (Index out = 0; out < outputs; ++out) {
    for (Index in = 0; in < inputs; ++in) {
      double sum = 0;
      for (Index row = 0; row < rows; ++row) {
        sum += load(op.gradOutput, row * outputs + out) * load(op.input, row * inputs + in);
      }
      storeOrAdd(op.gradWeight, out * inputs + in, sum, op.accumulate);
    }
  }
  if (op.gradBias) biasGradient(op);
}

}  // namespace tandem::kernels::reference
