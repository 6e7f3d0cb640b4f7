// AdamW over flat buffers: one pass (flat.h), bound by memory with 28 bytes an element. Gradients, moments and master
// weights are float32; the bfloat16 weights that the model computes with are written by the way.
#include <cmath>

#include "kernels/cuda/flat.h"
#include "kernels/cuda/operators.h"

namespace tandem::kernels::cuda {

namespace {

// What depends on the step alone is folded into factors by the host, in double.
struct AdamWFactors {
  float beta1, beta2, first, second;  // first = 1 - beta1, second = 1 - beta2
  float secondCorrection, stepSize, decay, epsilon, gradientScale;
};

AdamWFactors factorsOf(const AdamW& call) {
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

template <bool low>
struct AdamWElements {
  static constexpr int vectors = 1;  // of each of four operands
  const float* gradient;
  float *weight, *firstMoment, *secondMoment;
  __nv_bfloat16* lowWeight;
  AdamWFactors factors;

  template <int N>
  struct Values {
    float gradient[N], weight[N], first[N], second[N];
  };
  template <int N>
  __device__ void read(std::int64_t at, Values<N>& values) const {
    load(gradient + at, values.gradient);
    load(firstMoment + at, values.first);
    load(secondMoment + at, values.second);
    load(weight + at, values.weight);
  }
  template <int N>
  __device__ void write(std::int64_t at, Values<N>& values) const {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float g = values.gradient[i] * factors.gradientScale;
      const float m = fmaf(factors.beta1, values.first[i], factors.first * g);
      const float v = fmaf(factors.beta2, values.second[i], factors.second * g * g);
      const float size = sqrtf(v * factors.secondCorrection) + factors.epsilon;
      const float old = values.weight[i];
      // Subtracted together: a factor 1 - decay would round small decays away.
      values.weight[i] = old - fmaf(factors.decay, old, factors.stepSize * m / size);
      values.first[i] = m;
      values.second[i] = v;
    }
    store(firstMoment + at, values.first);
    store(secondMoment + at, values.second);
    store(weight + at, values.weight);
    if constexpr (low) store(lowWeight + at, values.weight);
  }
};

template <bool low>
void runAdamW(const AdamW& call, Context& context) {
  const AdamWElements<low> work{elements<float>(call.gradient),          elements<float>(call.weight),
                                elements<float>(call.firstMoment),       elements<float>(call.secondMoment),
                                elements<__nv_bfloat16>(call.lowWeight), factorsOf(call)};
  // Vectors of 4 elements: 16 bytes of the float32 operands, 8 of the bfloat16 one.
  runFlat<4>(work, call.weight.shape.count(),
             takeVectors<4>(call.gradient, call.weight, call.firstMoment, call.secondMoment, call.lowWeight), "AdamW",
             context.stream);
}

}  // namespace

void run(const AdamW& call, Context& context) {
  if (call.lowWeight) {
    runAdamW<true>(call, context);
  } else {
    runAdamW<false>(call, context);
  }
}

}  // namespace tandem::kernels::cuda
