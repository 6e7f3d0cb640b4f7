#pragma once
// Operands of 8-bit linear layers on a CPU, which has no such products: rounded as a GPU's would be, so that a model
// can be tried without one. No faster than without.

#include "kernels/cpu/operators.h"
#include "kernels/fp8_operands.h"

namespace tandem::kernels::cpu {

// For fp8::withRoundedOperands: a dense copy of the operand in scratch, rounded. A scale of 0: the operand's own.
class Fp8Rounding {
 public:
  explicit Fp8Rounding(Context& context) : context_(context) {}
  ConstTensorView operator()(int number, const ConstTensorView& operand, fp8::Format format, float scale,
                             float& largest) const;

 private:
  Context& context_;
};

}  // namespace tandem::kernels::cpu
