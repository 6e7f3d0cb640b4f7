#pragma once
// What of AdamW depends on the step alone, in double and rounded once, for all backends alike. An element then takes,
// in float32 and in this order,
//   g = gradient * gradientScale
//   m = fma(beta1, m, first * g)              v = fma(beta2, v, (second * g) * g)
//   w = w - fma(decay, w, (stepSize * m) / (sqrt(v * secondCorrection) + epsilon))
// Decay and update are subtracted together: a factor 1 - decay would round small decays away.

#include <cmath>

#include "kernels/backend.h"

namespace tandem::kernels {

struct AdamWFactors {
  float beta1, beta2, first, second;  // first = 1 - beta1, second = 1 - beta2
  float secondCorrection, stepSize, decay, epsilon, gradientScale;
};

inline AdamWFactors factorsOf(const AdamW& call) {
  const double step = static_cast<double>(call.step);
  AdamWFactors factors;
  factors.beta1 = call.beta1;
  factors.beta2 = call.beta2;
  factors.first = 1.0f - call.beta1;
  factors.second = 1.0f - call.beta2;
  factors.secondCorrection = static_cast<float>(1.0 / (1.0 - std::pow(static_cast<double>(call.beta2), step)));
  factors.stepSize =
      call.learningRate * static_cast<float>(1.0 / (1.0 - std::pow(static_cast<double>(call.beta1), step)));
  factors.decay = call.learningRate * call.weightDecay;
  factors.epsilon = call.epsilon;
  factors.gradientScale = call.gradientScale;
  return factors;
}

}  // namespace tandem::kernels
