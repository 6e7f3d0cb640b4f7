// LayerNorm and RMSNorm with the residual addition fused in; backward with the residual's gradient fused in.
#include <cmath>

#include "kernels/cpu/operators.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/cpu/storage.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/norm.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::kernels::cpu::HWY_NAMESPACE {

template <class Element>
void addRow(std::int64_t width, const Element* left, const Element* right, Element* sum) {
  forVectors(width, [=](std::int64_t i, auto extent) TANDEM_SIMD_LAMBDA {
    store(hn::Add(load(left + i, extent), load(right + i, extent)), sum + i, extent);
  });
}

template <class Element>
float rowSum(std::int64_t width, const Element* row) {
  return sumVectors(width, [=](std::int64_t i, auto extent, Vector sum)
                               TANDEM_SIMD_LAMBDA { return hn::Add(sum, load(row + i, extent)); });
}

// The lanes beyond a tail would count as (0 - mean)^2, so the tail is summed apart.
template <class Element>
float squaredDeviations(std::int64_t width, const Element* row, float mean) {
  const std::int64_t whole = width / lanes() * lanes();
  float total = sumVectors(whole, [=](std::int64_t i, auto extent, Vector sum) TANDEM_SIMD_LAMBDA {
    const Vector deviation = hn::Sub(load(row + i, extent), set(mean));
    return hn::MulAdd(deviation, deviation, sum);
  });
  for (std::int64_t i = whole; i < width; ++i) {
    const float deviation = static_cast<float>(row[i]) - mean;
    total += deviation * deviation;
  }
  return total;
}

template <class Element>
void normalizeRow(std::int64_t width, const Element* row, float mean, float reciprocal, const Element* weight,
                  const Element* bias, Element* output) {
  if (bias != nullptr) {
    forVectors(width, [=](std::int64_t i, auto extent) TANDEM_SIMD_LAMBDA {
      const Vector normal = hn::Mul(hn::Sub(load(row + i, extent), set(mean)), set(reciprocal));
      store(hn::MulAdd(normal, load(weight + i, extent), load(bias + i, extent)), output + i, extent);
    });
  } else {
    forVectors(width, [=](std::int64_t i, auto extent) TANDEM_SIMD_LAMBDA {
      const Vector normal = hn::Mul(hn::Sub(load(row + i, extent), set(mean)), set(reciprocal));
      store(hn::Mul(normal, load(weight + i, extent)), output + i, extent);
    });
  }
}

template <class Element>
void forwardRows(const Norm& call, std::int64_t begin, std::int64_t end) {
  const std::int64_t width = call.input.shape.last();
  const bool layer = call.kind == NormKind::layer;
  const Element* weight = elements<Element>(call.weight);
  const Element* bias = elements<Element>(call.bias);
  for (std::int64_t row = begin; row < end; ++row) {
    const Element* input = elements<Element>(call.input) + row * width;
    if (call.residual) {
      Element* sum = elements<Element>(call.sum) + row * width;
      addRow(width, input, elements<Element>(call.residual) + row * width, sum);
      input = sum;
    }
    const float mean = layer ? rowSum(width, input) / static_cast<float>(width) : 0.0f;
    const float variance = squaredDeviations(width, input, mean) / static_cast<float>(width);
    const float reciprocal = 1.0f / std::sqrt(variance + call.epsilon);
    normalizeRow(width, input, mean, reciprocal, weight, bias, elements<Element>(call.output) + row * width);
    if (call.mean) elements<float>(call.mean)[row] = mean;
    if (call.reciprocal) elements<float>(call.reciprocal)[row] = reciprocal;
  }
}

void forward(const Norm& call, std::int64_t begin, std::int64_t end) {
  withElement(call.input.type,
              [&](auto* type) HWY_ATTR { forwardRows<std::remove_pointer_t<decltype(type)>>(call, begin, end); });
}

// With y = n w + b and n = (x - mean) r: dx = r (g - mean(g) - n mean(g n)) where g = dy w; without mean(g) for rms.
template <class Element>
void backwardRow(std::int64_t width, const Element* gradOutput, const Element* gradSum, const Element* input,
                 const Element* weight, bool layer, float mean, float reciprocal, Element* gradInput) {
  const float count = static_cast<float>(width);
  const float projection = sumVectors(width, [=](std::int64_t i, auto extent, Vector sum) TANDEM_SIMD_LAMBDA {
    const Vector gradient = hn::Mul(load(gradOutput + i, extent), load(weight + i, extent));
    return hn::MulAdd(gradient, hn::Mul(hn::Sub(load(input + i, extent), set(mean)), set(reciprocal)), sum);
  });
  float shift = 0;
  if (layer) {
    shift = sumVectors(width, [=](std::int64_t i, auto extent, Vector sum) TANDEM_SIMD_LAMBDA {
      return hn::MulAdd(load(gradOutput + i, extent), load(weight + i, extent), sum);
    });
  }
  const float meanProjection = projection / count, meanShift = shift / count;
  const auto gradient = [=](std::int64_t i, auto extent) TANDEM_SIMD_LAMBDA {
    const Vector normal = hn::Mul(hn::Sub(load(input + i, extent), set(mean)), set(reciprocal));
    const Vector centred = hn::MulSub(load(gradOutput + i, extent), load(weight + i, extent), set(meanShift));
    return hn::Mul(hn::NegMulAdd(normal, set(meanProjection), centred), set(reciprocal));
  };
  if (gradSum != nullptr) {
    forVectors(width, [=](std::int64_t i, auto extent) TANDEM_SIMD_LAMBDA {
      store(hn::Add(gradient(i, extent), load(gradSum + i, extent)), gradInput + i, extent);
    });
  } else {
    forVectors(width, [=](std::int64_t i, auto extent)
                          TANDEM_SIMD_LAMBDA { store(gradient(i, extent), gradInput + i, extent); });
  }
}

// Adds one row's part to the gradients of weight and bias (null without one).
template <class Element>
void addParameterRow(std::int64_t width, const Element* gradOutput, const Element* input, float mean, float reciprocal,
                     float* gradWeight, float* gradBias) {
  forVectors(width, [=](std::int64_t i, auto extent) TANDEM_SIMD_LAMBDA {
    const Vector normal = hn::Mul(hn::Sub(load(input + i, extent), set(mean)), set(reciprocal));
    store(hn::MulAdd(load(gradOutput + i, extent), normal, load(gradWeight + i, extent)), gradWeight + i, extent);
  });
  if (gradBias == nullptr) return;
  forVectors(width, [=](std::int64_t i, auto extent) TANDEM_SIMD_LAMBDA {
    store(hn::Add(load(gradOutput + i, extent), load(gradBias + i, extent)), gradBias + i, extent);
  });
}

template <class Element>
void backwardRows(const NormBackward& call, std::int64_t begin, std::int64_t end, float* gradWeight, float* gradBias) {
  const std::int64_t width = call.input.shape.last();
  const bool layer = call.kind == NormKind::layer;
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t at = row * width;
    const Element* gradOutput = elements<Element>(call.gradOutput) + at;
    const Element* gradSum = call.gradSum ? elements<Element>(call.gradSum) + at : nullptr;
    const Element* input = elements<Element>(call.input) + at;
    const float mean = layer ? elements<float>(call.mean)[row] : 0.0f;
    const float reciprocal = elements<float>(call.reciprocal)[row];
    addParameterRow(width, gradOutput, input, mean, reciprocal, gradWeight, gradBias);
    backwardRow(width, gradOutput, gradSum, input, elements<Element>(call.weight), layer, mean, reciprocal,
                elements<Element>(call.gradInput) + at);
  }
}

void backward(const NormBackward& call, std::int64_t begin, std::int64_t end, float* gradWeight, float* gradBias) {
  withElement(call.input.type, [&](auto* type) HWY_ATTR {
    backwardRows<std::remove_pointer_t<decltype(type)>>(call, begin, end, gradWeight, gradBias);
  });
}

}  // namespace tandem::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::kernels::cpu {

HWY_EXPORT(forward);
HWY_EXPORT(backward);

void run(const Norm& call, Context& context) {
  parallelBlocks(context.threads, call.input.shape.rows(), 1, worthwhileRows(call.input.shape.last()),
                 [&](std::int64_t begin, std::int64_t end, int) { HWY_DYNAMIC_DISPATCH(forward)
                                                                  (call, begin, end); });
}

// Every block of rows has sums of its own for the parameters; they are added up in the order of the blocks.
void run(const NormBackward& call, Context& context) {
  const std::int64_t width = call.input.shape.last();
  const std::int64_t pitch = (width + 15) / 16 * 16;
  const std::int64_t floats = 2 * pitch * context.threads;
  auto* sums = reinterpret_cast<float*>(context.scratch.get(0, floats * static_cast<std::int64_t>(sizeof(float))));
  std::fill(sums, sums + floats, 0.0f);
  parallelBlocks(context.threads, call.input.shape.rows(), 1, worthwhileRows(width),
                 [&](std::int64_t begin, std::int64_t end, int block) {
                   float* own = sums + 2 * pitch * block;
                   HWY_DYNAMIC_DISPATCH(backward)(call, begin, end, own, call.gradBias ? own + pitch : nullptr);
                 });
  const auto gather = [&](const TensorView& target, std::int64_t offset) {
    float* to = elements<float>(target);
    for (std::int64_t i = 0; i < width; ++i) {
      float total = call.accumulate ? to[i] : 0.0f;
      for (int block = 0; block < context.threads; ++block) total += sums[2 * pitch * block + offset + i];
      to[i] = total;
    }
  };
  gather(call.gradWeight, 0);
  if (call.gradBias) gather(call.gradBias, pitch);
}

}  // namespace tandem::kernels::cpu
#endif
