// Flat runs of elements: add, scale, axpy, cast, fill.
#include "kernels/cpu/operators.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/cpu/storage.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::kernels::cpu::HWY_NAMESPACE {

template <class Element>
void addElements(const Element* left, const Element* right, Element* output, std::int64_t count) {
  forVectors(count, [=](std::int64_t i, auto extent) TANDEM_SIMD_LAMBDA {
    store(hn::Add(load(left + i, extent), load(right + i, extent)), output + i, extent);
  });
}

template <class From, class To>
void castElements(const From* from, To* to, std::int64_t count) {
  forVectors(count,
             [=](std::int64_t i, auto extent) TANDEM_SIMD_LAMBDA { store(load(from + i, extent), to + i, extent); });
}

template <class Element>
void fillElements(Element* to, std::int64_t count, float value) {
  forVectors(count, [=](std::int64_t i, auto extent) TANDEM_SIMD_LAMBDA { store(set(value), to + i, extent); });
}

void add(const Add& call, std::int64_t begin, std::int64_t end) {
  withElement(call.output.type, [&](auto* type) HWY_ATTR {
    using Element = std::remove_pointer_t<decltype(type)>;
    addElements(elements<Element>(call.left) + begin, elements<Element>(call.right) + begin,
                elements<Element>(call.output) + begin, end - begin);
  });
}

void scale(const Scale& call, std::int64_t begin, std::int64_t end) {
  float* data = elements<float>(call.data) + begin;
  const float factor = call.factor;
  forVectors(end - begin, [=](std::int64_t i, auto extent) TANDEM_SIMD_LAMBDA {
    store(hn::Mul(load(data + i, extent), set(factor)), data + i, extent);
  });
}

void axpy(const Axpy& call, std::int64_t begin, std::int64_t end) {
  const float* source = elements<float>(call.source) + begin;
  float* target = elements<float>(call.target) + begin;
  const float factor = call.factor;
  forVectors(end - begin, [=](std::int64_t i, auto extent) TANDEM_SIMD_LAMBDA {
    store(hn::MulAdd(load(source + i, extent), set(factor), load(target + i, extent)), target + i, extent);
  });
}

void cast(const Cast& call, std::int64_t begin, std::int64_t end) {
  withElement(call.input.type, [&](auto* inputType) HWY_ATTR {
    using From = std::remove_pointer_t<decltype(inputType)>;
    withElement(call.output.type, [&](auto* outputType) HWY_ATTR {
      using To = std::remove_pointer_t<decltype(outputType)>;
      castElements(elements<From>(call.input) + begin, elements<To>(call.output) + begin, end - begin);
    });
  });
}

void fill(const Fill& call, std::int64_t begin, std::int64_t end) {
  withElement(call.target.type, [&](auto* type) HWY_ATTR {
    using Element = std::remove_pointer_t<decltype(type)>;
    fillElements(elements<Element>(call.target) + begin, end - begin, call.value);
  });
}

}  // namespace tandem::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::kernels::cpu {

HWY_EXPORT(add);
HWY_EXPORT(scale);
HWY_EXPORT(axpy);
HWY_EXPORT(cast);
HWY_EXPORT(fill);

namespace {

// Blocks begin at multiples of a cache line, so that no two threads write to one.
template <class Body>
void split(std::int64_t count, const Context& context, const Body& body) {
  parallelBlocks(context.threads, count, 64, worthwhileElements,
                 [&](std::int64_t begin, std::int64_t end, int) { body(begin, end); });
}

}  // namespace

void run(const Add& call, Context& context) {
  split(call.output.shape.count(), context, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(add)(call, begin, end);
  });
}
void run(const Scale& call, Context& context) {
  split(call.data.shape.count(), context, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(scale)(call, begin, end);
  });
}
void run(const Axpy& call, Context& context) {
  split(call.target.shape.count(), context, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(axpy)(call, begin, end);
  });
}
void run(const Cast& call, Context& context) {
  split(call.output.shape.count(), context, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(cast)(call, begin, end);
  });
}
void run(const Fill& call, Context& context) {
  split(call.target.shape.count(), context, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(fill)(call, begin, end);
  });
}

}  // namespace tandem::kernels::cpu
#endif
