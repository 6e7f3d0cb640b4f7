#include "kernels/cpu/few_rows_product.h"

#include "kernels/cpu/float_rows.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/cpu/storage.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/few_rows_product.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::kernels::cpu::HWY_NAMESPACE {

HWY_INLINE float total(Vector sum) { return hn::GetLane(hn::SumOfLanes(Floats(), sum)); }

// Four outputs at once: their weights stream side by side, and four sums hide the latency of an addition.
template <class Element>
void dotFour(std::int64_t count, const float* input, const Element* weight, std::int64_t pitch, float* result) {
  const Element* weight1 = weight + pitch;
  const Element* weight2 = weight1 + pitch;
  const Element* weight3 = weight2 + pitch;
  const std::int64_t step = lanes();
  Vector sum0 = hn::Zero(Floats()), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  std::int64_t i = 0;
  for (; i + step <= count; i += step) {
    const Vector x = load(input + i, Whole{});
    sum0 = hn::MulAdd(x, load(weight + i, Whole{}), sum0);
    sum1 = hn::MulAdd(x, load(weight1 + i, Whole{}), sum1);
    sum2 = hn::MulAdd(x, load(weight2 + i, Whole{}), sum2);
    sum3 = hn::MulAdd(x, load(weight3 + i, Whole{}), sum3);
  }
  if (i < count) {
    const Part rest{static_cast<std::size_t>(count - i)};
    const Vector x = load(input + i, rest);
    sum0 = hn::MulAdd(x, load(weight + i, rest), sum0);
    sum1 = hn::MulAdd(x, load(weight1 + i, rest), sum1);
    sum2 = hn::MulAdd(x, load(weight2 + i, rest), sum2);
    sum3 = hn::MulAdd(x, load(weight3 + i, rest), sum3);
  }
  result[0] = total(sum0);
  result[1] = total(sum1);
  result[2] = total(sum2);
  result[3] = total(sum3);
}

template <class Element>
float dotOne(std::int64_t count, const float* input, const Element* weight) {
  return sumVectors(count, [=](std::int64_t i, auto extent, Vector sum) TANDEM_SIMD_LAMBDA {
    return hn::MulAdd(load(input + i, extent), load(weight + i, extent), sum);
  });
}

// Outputs [begin, end) of all rows. Four rows of the weight stay in the cache while the rows of the input pass.
void productColumns(const float* input, std::int64_t rows, const ConstTensorView& weight, float* product,
                    std::int64_t begin, std::int64_t end) {
  withElement(weight.type, [&](auto* type) HWY_ATTR {
    using Element = std::remove_pointer_t<decltype(type)>;
    const std::int64_t outputs = weight.shape[0], inputs = weight.shape[1];
    const Element* weights = elements<Element>(weight);
    std::int64_t output = begin;
    for (; output + 4 <= end; output += 4) {
      for (std::int64_t row = 0; row < rows; ++row) {
        dotFour(inputs, input + row * inputs, weights + output * inputs, inputs, product + row * outputs + output);
      }
    }
    for (; output < end; ++output) {
      for (std::int64_t row = 0; row < rows; ++row) {
        product[row * outputs + output] = dotOne(inputs, input + row * inputs, weights + output * inputs);
      }
    }
  });
}

}  // namespace tandem::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::kernels::cpu {

HWY_EXPORT(productColumns);

void fewRowsProduct(const ConstTensorView& input, const ConstTensorView& weight, float* product, int slot,
                    Context& context) {
  const std::int64_t rows = input.shape.rows();
  const float* floats = floatRows(input, 0, rows, slot, context);
  parallelBlocks(context.threads, weight.shape[0], 16, worthwhileRows(weight.shape[1] / 2),
                 [&](std::int64_t begin, std::int64_t end, int) {
                   HWY_DYNAMIC_DISPATCH(productColumns)(floats, rows, weight, product, begin, end);
                 });
}

}  // namespace tandem::kernels::cpu
#endif
