#pragma once
// Linear layers of 8-bit operands on a host: their operands rounded as kernels::Linear says, and then the layer as any
// other. Scales are powers of two, so that what a product sees is exact in the operand's own type too.

#include <algorithm>
#include <cmath>

#include "kernels/backend.h"
#include "kernels/fp8_format.h"

namespace tandem::kernels::fp8 {

// One operand: `place` of its scale in the state, that of its largest value three further on.
struct Operand {
  ConstTensorView* view;
  Format format;
  Place scale;
};

// Calls round(operand number, view, format, scale or 0, largest) of each, which gives the rounded view; `largest` is
// raised where the operand is seen for the first time in a step's pass.
template <class Round>
void roundOperand(int number, const Operand& operand, const TensorView& state, bool raises, const Round& round) {
  auto* const values = static_cast<float*>(state.data);
  float largest = 0;
  *operand.view = round(number, *operand.view, operand.format, values[operand.scale], largest);
  if (raises) values[operand.scale + inputLargest] = std::max(values[operand.scale + inputLargest], largest);
}

template <class Round>
Linear withRoundedOperands(Linear call, const Round& round) {
  roundOperand(0, {&call.input, Format::e4m3, inputScale}, call.fp8, true, round);
  roundOperand(1, {&call.weight, Format::e4m3, weightScale}, call.fp8, true, round);
  call.fp8 = {};
  return call;
}
template <class Round>
LinearBackwardInput withRoundedOperands(LinearBackwardInput call, const Round& round) {
  roundOperand(0, {&call.gradOutput, Format::e5m2, gradientScale}, call.fp8, true, round);
  roundOperand(1, {&call.weight, Format::e4m3, weightScale}, call.fp8, false, round);
  call.fp8 = {};
  return call;
}
template <class Round>
LinearBackwardWeight withRoundedOperands(LinearBackwardWeight call, const Round& round) {
  roundOperand(0, {&call.gradOutput, Format::e5m2, gradientScale}, call.fp8, true, round);
  roundOperand(1, {&call.input, Format::e4m3, inputScale}, call.fp8, false, round);
  call.fp8 = {};
  return call;
}

}  // namespace tandem::kernels::fp8
