// Linear layers: a product of the matrix library, and what follows it (bias, activation, its derivative) while the
// block of rows is still in the cache.
#include <algorithm>

#include "kernels/cpu/few_rows_product.h"
#include "kernels/cpu/float_rows.h"
#include "kernels/cpu/fp8_rounding.h"
#include "kernels/cpu/linear_epilogue.h"
#include "kernels/cpu/matrix_product.h"
#include "kernels/cpu/operators.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/cpu/storage.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/simd_activation.h"

#ifndef TANDEM_KERNELS_CPU_LINEAR_BLOCKS
#define TANDEM_KERNELS_CPU_LINEAR_BLOCKS
namespace tandem::kernels::cpu {

// A block of a product, float32 [rows, columns], and where in the operands of the call it belongs.
struct ProductBlock {
  const float* values = nullptr;
  std::int64_t leading = 0;  // elements from a row of values to the next
  std::int64_t firstRow = 0, rows = 0;
  std::int64_t firstColumn = 0, columns = 0;
};

}  // namespace tandem::kernels::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace tandem::kernels::cpu::HWY_NAMESPACE {

template <ActivationKind kind, class Element>
void finishRow(std::int64_t columns, const float* values, const Element* bias, Element* preActivation,
               Element* output) {
  forVectors(columns, [=](std::int64_t i, auto extent) TANDEM_SIMD_LAMBDA {
    Vector x = load(values + i, extent);
    if (bias != nullptr) x = hn::Add(x, load(bias + i, extent));
    if (preActivation != nullptr) store(x, preActivation + i, extent);
    store(activate<kind>(x), output + i, extent);
  });
}

template <ActivationKind kind, class Element>
void finishRows(const Linear& call, const ProductBlock& block, std::int64_t begin, std::int64_t end) {
  const std::int64_t outputs = call.output.shape.last();
  const Element* bias = call.bias ? elements<Element>(call.bias) + block.firstColumn : nullptr;
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t at = (block.firstRow + row) * outputs + block.firstColumn;
    Element* preActivation = call.preActivation ? elements<Element>(call.preActivation) + at : nullptr;
    finishRow<kind>(block.columns, block.values + row * block.leading, bias, preActivation,
                    elements<Element>(call.output) + at);
  }
}

// output = activation(product + bias), rows [begin, end) of the block.
void finish(const Linear& call, const ProductBlock& block, std::int64_t begin, std::int64_t end) {
  withElement(call.output.type, [&](auto* type) HWY_ATTR {
    using Element = std::remove_pointer_t<decltype(type)>;
    switch (call.activation) {
      case ActivationKind::geluTanh:
        return finishRows<ActivationKind::geluTanh, Element>(call, block, begin, end);
      case ActivationKind::geluErf:
        return finishRows<ActivationKind::geluErf, Element>(call, block, begin, end);
      case ActivationKind::relu2:
        return finishRows<ActivationKind::relu2, Element>(call, block, begin, end);
      default:
        return finishRows<ActivationKind::none, Element>(call, block, begin, end);
    }
  });
}

template <ActivationKind kind, class Element>
void finishBackwardRows(const LinearBackwardInput& call, const ProductBlock& block, std::int64_t begin,
                        std::int64_t end) {
  const bool accumulate = call.accumulate;
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t at = (block.firstRow + row) * call.gradInput.shape.last() + block.firstColumn;
    const float* values = block.values + row * block.leading;
    const Element* preActivation = elements<Element>(call.preActivation) + (call.preActivation ? at : 0);
    Element* gradInput = elements<Element>(call.gradInput) + at;
    forVectors(block.columns, [=](std::int64_t i, auto extent) TANDEM_SIMD_LAMBDA {
      Vector gradient = load(values + i, extent);
      if constexpr (kind != ActivationKind::none) {
        gradient = hn::Mul(gradient, slope<kind>(load(preActivation + i, extent)));
      }
      if (accumulate) gradient = hn::Add(gradient, load(gradInput + i, extent));
      store(gradient, gradInput + i, extent);
    });
  }
}

// gradInput (+)= product * activation'(preActivation), rows [begin, end) of the block.
void finishBackward(const LinearBackwardInput& call, const ProductBlock& block, std::int64_t begin, std::int64_t end) {
  withElement(call.gradInput.type, [&](auto* type) HWY_ATTR {
    using Element = std::remove_pointer_t<decltype(type)>;
    switch (call.activation) {
      case ActivationKind::geluTanh:
        return finishBackwardRows<ActivationKind::geluTanh, Element>(call, block, begin, end);
      case ActivationKind::geluErf:
        return finishBackwardRows<ActivationKind::geluErf, Element>(call, block, begin, end);
      case ActivationKind::relu2:
        return finishBackwardRows<ActivationKind::relu2, Element>(call, block, begin, end);
      default:
        return finishBackwardRows<ActivationKind::none, Element>(call, block, begin, end);
    }
  });
}

// sums[j] = sum of rows [begin, end) of column j. Four rows at a time, so that the sums are touched less often.
void columnSums(const ConstTensorView& matrix, std::int64_t begin, std::int64_t end, float* sums) {
  const std::int64_t width = matrix.shape.last();
  withElement(matrix.type, [&](auto* type) HWY_ATTR {
    using Element = std::remove_pointer_t<decltype(type)>;
    std::int64_t row = begin;
    for (; row + 4 <= end; row += 4) {
      const Element* from = elements<Element>(matrix) + row * width;
      forVectors(width, [=](std::int64_t i, auto extent) TANDEM_SIMD_LAMBDA {
        const Element* at = from + i;
        const Vector first = hn::Add(load(at, extent), load(at + width, extent));
        const Vector second = hn::Add(load(at + 2 * width, extent), load(at + 3 * width, extent));
        store(hn::Add(load(sums + i, extent), hn::Add(first, second)), sums + i, extent);
      });
    }
    for (; row < end; ++row) {
      const Element* from = elements<Element>(matrix) + row * width;
      forVectors(width, [=](std::int64_t i, auto extent) TANDEM_SIMD_LAMBDA {
        store(hn::Add(load(sums + i, extent), load(from + i, extent)), sums + i, extent);
      });
    }
  });
}

}  // namespace tandem::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::kernels::cpu {

HWY_EXPORT(finish);
HWY_EXPORT(finishBackward);
HWY_EXPORT(columnSums);

namespace {

// Scratch slots of this file.
constexpr int inputSlot = 0, weightSlot = 1, productSlot = 2, sumsSlot = 3;

// Rows whose product is computed before the next step goes over them: few enough for the cache, enough for the matrix
// library to be at its best.
std::int64_t blockRows(std::int64_t rows, std::int64_t width) {
  constexpr std::int64_t floats = std::int64_t{3} << 19;  // 6 MB
  const std::int64_t fitting = std::max<std::int64_t>(512, floats / std::max<std::int64_t>(1, width));
  const std::int64_t blocks = (rows + fitting - 1) / fitting;
  return blocks <= 1 ? std::max<std::int64_t>(rows, 1) : (rows + blocks - 1) / blocks;
}

template <class Body>
void overRows(std::int64_t rows, std::int64_t width, const Context& context, const Body& body) {
  parallelBlocks(context.threads, rows, 1, worthwhileRows(width * 2),
                 [&](std::int64_t begin, std::int64_t end, int) { body(begin, end); });
}

// Nothing follows the product: float32 without bias and activation.
bool isProductAlone(const Linear& call) {
  return call.output.type == DType::f32 && !call.bias && !call.preActivation && call.activation == ActivationKind::none;
}

// The product of float32 goes straight to the output; for 16-bit types it is made apart and rounded at the end.
ProductBlock blockOf(const Linear& call, std::int64_t firstRow, std::int64_t rows, std::int64_t firstColumn,
                     std::int64_t columns, float*& product, Context& context) {
  const std::int64_t outputs = call.weight.shape[0];
  const bool inPlace = call.output.type == DType::f32;
  product = inPlace ? elements<float>(call.output) + firstRow * outputs + firstColumn
                    : scratchFloats(productSlot, rows * columns, context);
  return ProductBlock{product, inPlace ? outputs : columns, firstRow, rows, firstColumn, columns};
}

void finishBlock(const Linear& call, const ProductBlock& block, const Context& context) {
  if (isProductAlone(call)) return;
  overRows(block.rows, block.columns, context, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(finish)(call, block, begin, end);
  });
}

void linearBlock(const Linear& call, std::int64_t firstRow, std::int64_t rows, std::int64_t firstColumn,
                 std::int64_t columns, const float* weight, Context& context) {
  const std::int64_t inputs = call.weight.shape[1];
  const float* input = floatRows(call.input, firstRow, rows, inputSlot, context);
  float* product = nullptr;
  const ProductBlock block = blockOf(call, firstRow, rows, firstColumn, columns, product, context);
  context.matrixProduct->multiply(ProductShape{.transposeB = true,
                                               .m = rows,
                                               .n = columns,
                                               .k = inputs,
                                               .leadingA = inputs,
                                               .leadingB = inputs,
                                               .leadingC = block.leading},
                                  input, weight, product);
  finishBlock(call, block, context);
}

void linearOfFewRows(const Linear& call, Context& context) {
  float* product = nullptr;
  const ProductBlock block = blockOf(call, 0, call.input.shape.rows(), 0, call.weight.shape[0], product, context);
  fewRowsProduct(call.input, call.weight, product, inputSlot, context);
  finishBlock(call, block, context);
}

void gradInputBlock(const LinearBackwardInput& call, std::int64_t firstRow, std::int64_t rows, Context& context) {
  const std::int64_t outputs = call.weight.shape[0], inputs = call.weight.shape[1];
  const bool exact = call.gradInput.type == DType::f32;
  const bool direct = exact && call.activation == ActivationKind::none;  // the library adds by itself
  const bool inPlace = direct || (exact && !call.accumulate);
  float* product = inPlace ? elements<float>(call.gradInput) + firstRow * inputs
                           : scratchFloats(productSlot, rows * inputs, context);
  const float* gradOutput = floatRows(call.gradOutput, firstRow, rows, inputSlot, context);
  const std::int64_t panel =
      call.weight.type == DType::f32 ? std::max<std::int64_t>(outputs, 1) : convertibleRows(outputs, inputs);
  std::int64_t first = 0;
  do {  // once too without outputs: the product is zero then
    const std::int64_t terms = std::min(panel, outputs - first);
    const float* weight = floatRows(call.weight, first, terms, weightSlot, context);
    const bool add = first > 0 || (direct && call.accumulate);
    context.matrixProduct->multiply(ProductShape{.m = rows,
                                                 .n = inputs,
                                                 .k = terms,
                                                 .leadingA = outputs,
                                                 .leadingB = inputs,
                                                 .leadingC = inputs,
                                                 .beta = add ? 1.0f : 0.0f},
                                    gradOutput + first, weight, product);
    first += panel;
  } while (first < outputs);
  if (direct) return;
  const ProductBlock block{product, inputs, firstRow, rows, 0, inputs};
  overRows(rows, inputs, context, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(finishBackward)(call, block, begin, end);
  });
}

// Every block of rows has sums of its own; they are added up in the order of the blocks.
void biasGradient(const LinearBackwardWeight& call, Context& context) {
  const std::int64_t outputs = call.gradOutput.shape.last();
  const std::int64_t pitch = (outputs + 15) / 16 * 16;
  float* sums = scratchFloats(sumsSlot, pitch * context.threads, context);
  std::fill(sums, sums + pitch * context.threads, 0.0f);
  parallelBlocks(context.threads, call.gradOutput.shape.rows(), 1, worthwhileRows(outputs),
                 [&](std::int64_t begin, std::int64_t end, int block) {
                   HWY_DYNAMIC_DISPATCH(columnSums)(call.gradOutput, begin, end, sums + pitch * block);
                 });
  float* gradBias = elements<float>(call.gradBias);
  for (std::int64_t i = 0; i < outputs; ++i) {
    float total = call.accumulate ? gradBias[i] : 0.0f;
    for (int block = 0; block < context.threads; ++block) total += sums[pitch * block + i];
    gradBias[i] = total;
  }
}

}  // namespace

void finishLinear(const Linear& call, const float* product, Context& context) {
  const std::int64_t outputs = call.output.shape.last();
  finishBlock(call, ProductBlock{product, outputs, 0, call.output.shape.rows(), 0, outputs}, context);
}

void run(const Linear& call, Context& context) {
  if (call.fp8) return run(fp8::withRoundedOperands(call, Fp8Rounding(context)), context);
  const std::int64_t rows = call.input.shape.rows();
  if (rows <= fewRows) return linearOfFewRows(call, context);
  const std::int64_t outputs = call.weight.shape[0], inputs = call.weight.shape[1];
  const std::int64_t panel =
      call.output.type == DType::f32 ? std::max<std::int64_t>(outputs, 1) : convertibleRows(outputs, inputs);
  const std::int64_t rowBlock = isProductAlone(call) ? rows : blockRows(rows, std::min(panel, outputs));
  for (std::int64_t column = 0; column < outputs; column += panel) {
    const std::int64_t columns = std::min(panel, outputs - column);
    const float* weight = floatRows(call.weight, column, columns, weightSlot, context);
    for (std::int64_t row = 0; row < rows; row += rowBlock) {
      linearBlock(call, row, std::min(rowBlock, rows - row), column, columns, weight, context);
    }
  }
}

void run(const LinearBackwardInput& call, Context& context) {
  if (call.fp8) return run(fp8::withRoundedOperands(call, Fp8Rounding(context)), context);
  const std::int64_t rows = call.gradOutput.shape.rows();
  const bool direct = call.gradInput.type == DType::f32 && call.activation == ActivationKind::none;
  const std::int64_t rowBlock =
      direct ? std::max<std::int64_t>(rows, 1) : blockRows(rows, std::max(call.weight.shape[0], call.weight.shape[1]));
  for (std::int64_t row = 0; row < rows; row += rowBlock) {
    gradInputBlock(call, row, std::min(rowBlock, rows - row), context);
  }
}

void run(const LinearBackwardWeight& call, Context& context) {
  if (call.fp8) {
    LinearBackwardWeight product = fp8::withRoundedOperands(call, Fp8Rounding(context));
    product.gradBias = {};
    run(product, context);
    if (call.gradBias) biasGradient(call, context);  // of the gradient as it came
    return;
  }
  const std::int64_t rows = call.input.shape.rows();
  const std::int64_t outputs = call.gradWeight.shape[0], inputs = call.gradWeight.shape[1];
  const std::int64_t rowBlock = call.input.type == DType::f32 ? std::max<std::int64_t>(rows, 1)
                                                              : convertibleRows(rows, std::max(outputs, inputs));
  std::int64_t first = 0;
  do {  // once too without rows: the gradient is zero then
    const std::int64_t terms = std::min(rowBlock, rows - first);
    const float* gradOutput = floatRows(call.gradOutput, first, terms, inputSlot, context);
    const float* input = floatRows(call.input, first, terms, weightSlot, context);
    context.matrixProduct->multiply(ProductShape{.transposeA = true,
                                                 .m = outputs,
                                                 .n = inputs,
                                                 .k = terms,
                                                 .leadingA = outputs,
                                                 .leadingB = inputs,
                                                 .leadingC = inputs,
                                                 .beta = first > 0 || call.accumulate ? 1.0f : 0.0f},
                                    gradOutput, input, elements<float>(call.gradWeight));
    first += rowBlock;
  } while (first < rows);
  if (call.gradBias) biasGradient(call, context);
}

}  // namespace tandem::kernels::cpu
#endif
