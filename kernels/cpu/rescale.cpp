// Norms of the rows of a matrix and of what it is changed to, and the columns stretched by them; backward with the sums
// for the gain.
#include <cmath>

#include "kernels/cpu/float_rows.h"
#include "kernels/cpu/operators.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/cpu/storage.h"
#include "kernels/row_stretch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rescale.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::kernels::cpu::HWY_NAMESPACE {

template <class Element>
void normRows(const RowNorms& call, std::int64_t begin, std::int64_t end) {
  const std::int64_t width = call.matrix.shape[1];
  const float factor = call.factor;
  for (std::int64_t row = begin; row < end; ++row) {
    const Element* matrix = elements<Element>(call.matrix) + row * width;
    const Element* change = elements<Element>(call.change) + row * width;
    const float squares = sumVectors(width, [=](std::int64_t i, auto extent, Vector sum) TANDEM_SIMD_LAMBDA {
      const Vector value = load(matrix + i, extent);
      return hn::MulAdd(value, value, sum);
    });
    const float changedSquares = sumVectors(width, [=](std::int64_t i, auto extent, Vector sum) TANDEM_SIMD_LAMBDA {
      const Vector value = hn::MulAdd(load(change + i, extent), set(factor), load(matrix + i, extent));
      return hn::MulAdd(value, value, sum);
    });
    elements<float>(call.norms)[row] = std::sqrt(squares);
    elements<float>(call.changedNorms)[row] = std::sqrt(changedSquares);
  }
}

void norms(const RowNorms& call, std::int64_t begin, std::int64_t end) {
  withElement(call.matrix.type,
              [&](auto* type) HWY_ATTR { normRows<std::remove_pointer_t<decltype(type)>>(call, begin, end); });
}

template <class Element>
void stretchRows(const Rescale& call, const float* stretch, std::int64_t begin, std::int64_t end) {
  const std::int64_t width = call.gain.shape.count();
  const Element* bias = elements<Element>(call.bias);
  for (std::int64_t row = begin; row < end; ++row) {
    const Element* input = elements<Element>(call.input) + row * width;
    Element* output = elements<Element>(call.output) + row * width;
    if (bias != nullptr) {
      forVectors(width, [=](std::int64_t i, auto extent) TANDEM_SIMD_LAMBDA {
        store(hn::MulAdd(load(stretch + i, extent), load(input + i, extent), load(bias + i, extent)), output + i,
              extent);
      });
    } else {
      forVectors(width, [=](std::int64_t i, auto extent) TANDEM_SIMD_LAMBDA {
        store(hn::Mul(load(stretch + i, extent), load(input + i, extent)), output + i, extent);
      });
    }
  }
}

void stretch(const Rescale& call, const float* factors, std::int64_t begin, std::int64_t end) {
  withElement(call.input.type, [&](auto* type) HWY_ATTR {
    stretchRows<std::remove_pointer_t<decltype(type)>>(call, factors, begin, end);
  });
}

// Adds to `sums` what the rows have of gradOutput * input.
template <class Element>
void backwardRows(const RescaleBackward& call, const float* stretch, std::int64_t begin, std::int64_t end,
                  float* sums) {
  const std::int64_t width = call.gain.shape.count();
  for (std::int64_t row = begin; row < end; ++row) {
    const Element* gradOutput = elements<Element>(call.gradOutput) + row * width;
    const Element* input = elements<Element>(call.input) + row * width;
    Element* gradInput = elements<Element>(call.gradInput) + row * width;
    forVectors(width, [=](std::int64_t i, auto extent) TANDEM_SIMD_LAMBDA {
      const Vector gradient = load(gradOutput + i, extent);
      store(hn::MulAdd(gradient, load(input + i, extent), load(sums + i, extent)), sums + i, extent);
      store(hn::Mul(load(stretch + i, extent), gradient), gradInput + i, extent);
    });
  }
}

void backward(const RescaleBackward& call, const float* factors, std::int64_t begin, std::int64_t end, float* sums) {
  withElement(call.input.type, [&](auto* type) HWY_ATTR {
    backwardRows<std::remove_pointer_t<decltype(type)>>(call, factors, begin, end, sums);
  });
}

}  // namespace tandem::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::kernels::cpu {

HWY_EXPORT(norms);
HWY_EXPORT(stretch);
HWY_EXPORT(backward);

namespace {

// Of every column.
template <class Operator>
const float* stretchesOf(const Operator& call, Context& context) {
  const std::int64_t width = call.gain.shape.count();
  float* const factors = scratchFloats(0, width, context);
  withElement(call.gain.type, [&](auto* type) {
    const auto* gain = elements<std::remove_pointer_t<decltype(type)>>(call.gain);
    for (std::int64_t i = 0; i < width; ++i) {
      factors[i] = rowStretch(elements<float>(call.norms)[i], static_cast<float>(gain[i]),
                              elements<float>(call.changedNorms)[i]);
    }
  });
  return factors;
}

}  // namespace

void run(const RowNorms& call, Context& context) {
  parallelBlocks(context.threads, call.matrix.shape[0], 16, worthwhileRows(call.matrix.shape[1]),
                 [&](std::int64_t begin, std::int64_t end, int) {
                   HWY_DYNAMIC_DISPATCH(norms)
                   (call, begin, end);
                 });
}

void run(const Rescale& call, Context& context) {
  const float* const factors = stretchesOf(call, context);
  parallelBlocks(context.threads, call.input.shape.rows(), 1, worthwhileRows(call.input.shape.last()),
                 [&](std::int64_t begin, std::int64_t end, int) {
                   HWY_DYNAMIC_DISPATCH(stretch)(call, factors, begin, end);
                 });
}

// Every block of rows has sums of its own; they are added up in the order of the blocks.
void run(const RescaleBackward& call, Context& context) {
  const std::int64_t width = call.gain.shape.count(), pitch = (width + 15) / 16 * 16;
  const float* const factors = stretchesOf(call, context);
  float* const sums = scratchFloats(1, pitch * context.threads, context);
  std::fill(sums, sums + pitch * context.threads, 0.0f);
  parallelBlocks(context.threads, call.input.shape.rows(), 1, worthwhileRows(width),
                 [&](std::int64_t begin, std::int64_t end, int block) {
                   HWY_DYNAMIC_DISPATCH(backward)(call, factors, begin, end, sums + pitch * block);
                 });
  float* const target = elements<float>(call.gradGain);
  for (std::int64_t i = 0; i < width; ++i) {
    float total = 0;
    for (int block = 0; block < context.threads; ++block) total += sums[pitch * block + i];
    // Of no rows it is zero, whatever the norms are.
    if (call.input.shape.rows() > 0) total *= rowReciprocal(elements<float>(call.changedNorms)[i]);
    target[i] = call.accumulate ? target[i] + total : total;
  }
}

}  // namespace tandem::kernels::cpu
#endif
