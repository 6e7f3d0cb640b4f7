// Activation functions as operators of their own; linear.cpp fuses the same functions into its products.
#include "kernels/cpu/operators.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/cpu/storage.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/activation.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/simd_activation.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::kernels::cpu::HWY_NAMESPACE {

template <ActivationKind kind, class Element>
void forwardRun(std::int64_t count, const Element* input, Element* output) {
  forVectors(count, [=](std::int64_t i, auto extent)
                        TANDEM_SIMD_LAMBDA { store(activate<kind>(load(input + i, extent)), output + i, extent); });
}

template <ActivationKind kind, class Element>
void backwardRun(std::int64_t count, const Element* gradOutput, const Element* input, Element* gradInput) {
  forVectors(count, [=](std::int64_t i, auto extent) TANDEM_SIMD_LAMBDA {
    store(hn::Mul(load(gradOutput + i, extent), slope<kind>(load(input + i, extent))), gradInput + i, extent);
  });
}

// output = silu(gate) * up for one row.
template <class Element>
void swigluRow(std::int64_t width, const Element* input, Element* output) {
  forVectors(width, [=](std::int64_t i, auto extent) TANDEM_SIMD_LAMBDA {
    const Vector gate = load(input + i, extent);
    const Vector up = load(input + width + i, extent);
    store(hn::Mul(hn::Mul(gate, sigmoid(gate)), up), output + i, extent);
  });
}

template <class Element>
void swigluBackwardRow(std::int64_t width, const Element* gradOutput, const Element* input, Element* gradInput) {
  forVectors(width, [=](std::int64_t i, auto extent) TANDEM_SIMD_LAMBDA {
    const Vector gate = load(input + i, extent);
    const Vector up = load(input + width + i, extent);
    const Vector gradient = load(gradOutput + i, extent);
    const Vector s = sigmoid(gate);
    const Vector silu = hn::Mul(gate, s);
    const Vector siluSlope = hn::MulAdd(silu, hn::Sub(set(1.0f), s), s);
    store(hn::Mul(hn::Mul(gradient, up), siluSlope), gradInput + i, extent);
    store(hn::Mul(gradient, silu), gradInput + width + i, extent);
  });
}

void forward(const Activation& call, std::int64_t begin, std::int64_t end) {
  withElement(call.input.type, [&](auto* type) HWY_ATTR {
    using Element = std::remove_pointer_t<decltype(type)>;
    const Element* input = elements<Element>(call.input);
    Element* output = elements<Element>(call.output);
    if (call.kind == ActivationKind::swiglu) {
      const std::int64_t width = call.output.shape.last();
      for (std::int64_t row = begin; row < end; ++row) swigluRow(width, input + 2 * row * width, output + row * width);
      return;
    }
    input += begin;
    output += begin;
    switch (call.kind) {
      case ActivationKind::geluTanh:
        return forwardRun<ActivationKind::geluTanh>(end - begin, input, output);
      case ActivationKind::geluErf:
        return forwardRun<ActivationKind::geluErf>(end - begin, input, output);
      case ActivationKind::relu2:
        return forwardRun<ActivationKind::relu2>(end - begin, input, output);
      default:
        return forwardRun<ActivationKind::none>(end - begin, input, output);
    }
  });
}

void backward(const ActivationBackward& call, std::int64_t begin, std::int64_t end) {
  withElement(call.input.type, [&](auto* type) HWY_ATTR {
    using Element = std::remove_pointer_t<decltype(type)>;
    const Element* gradOutput = elements<Element>(call.gradOutput);
    const Element* input = elements<Element>(call.input);
    Element* gradInput = elements<Element>(call.gradInput);
    if (call.kind == ActivationKind::swiglu) {
      const std::int64_t width = call.gradOutput.shape.last();
      for (std::int64_t row = begin; row < end; ++row) {
        swigluBackwardRow(width, gradOutput + row * width, input + 2 * row * width, gradInput + 2 * row * width);
      }
      return;
    }
    const std::int64_t count = end - begin;
    gradOutput += begin;
    input += begin;
    gradInput += begin;
    switch (call.kind) {
      case ActivationKind::geluTanh:
        return backwardRun<ActivationKind::geluTanh>(count, gradOutput, input, gradInput);
      case ActivationKind::geluErf:
        return backwardRun<ActivationKind::geluErf>(count, gradOutput, input, gradInput);
      case ActivationKind::relu2:
        return backwardRun<ActivationKind::relu2>(count, gradOutput, input, gradInput);
      default:
        return backwardRun<ActivationKind::none>(count, gradOutput, input, gradInput);
    }
  });
}

}  // namespace tandem::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::kernels::cpu {

HWY_EXPORT(forward);
HWY_EXPORT(backward);

namespace {

// In rows for swiglu, whose two halves belong together, else in elements; an element costs about 20 operations.
template <class Body>
void split(ActivationKind kind, const Shape& shape, const Context& context, const Body& body) {
  if (kind == ActivationKind::swiglu) {
    parallelBlocks(context.threads, shape.rows(), 1, worthwhileRows(shape.last() * 4), body);
  } else {
    parallelBlocks(context.threads, shape.count(), 64, worthwhileElements / 4, body);
  }
}

}  // namespace

void run(const Activation& call, Context& context) {
  split(call.kind, call.output.shape, context, [&](std::int64_t begin, std::int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(forward)(call, begin, end);
  });
}

void run(const ActivationBackward& call, Context& context) {
  split(call.kind, call.gradOutput.shape, context, [&](std::int64_t begin, std::int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(backward)(call, begin, end);
  });
}

}  // namespace tandem::kernels::cpu
#endif
