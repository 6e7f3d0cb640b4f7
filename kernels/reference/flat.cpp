#include "kernels/reference/access.h"
#include "kernels/reference/operators.h"

namespace tandem::kernels::reference {

void run(const SquaredNorm& op) {
  double sum = 0;
  for (Index i = 0; i < op.input.shape.count(); ++i) sum += load(op.input, i) * load(op.input, i);
  store(op.result, 0, sum);
}

void run(const Scale& op) {
  for (Index i = 0; i < op.data.shape.count(); ++i) store(op.data, i, load(op.data, i) * op.factor);
}

void run(const Axpy& op) {
  for (Index i = 0; i < op.target.shape.count(); ++i) {
    store(op.target, i, load(op.target, i) + op.factor * load(op.source, i));
  }
}

void run(const Cast& op) {
  for (Index i = 0; i < op.output.shape.count(); ++i) store(op.output, i, load(op.input, i));
}

void run(const Fill& op) {
  for (Index i = 0; i < op.target.shape.count(); ++i) store(op.target, i, op.value);
}

}  // namespace tandem::kernels::reference
