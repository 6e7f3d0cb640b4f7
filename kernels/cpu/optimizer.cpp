// AdamW and the squared norm over flat runs of parameters.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/operators.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/cpu/storage.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/optimizer.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::kernels::cpu::HWY_NAMESPACE {

// One pass over gradient, moments and weights; what depends on the step alone is folded into factors beforehand.
void adamW(const AdamW& call, std::int64_t begin, std::int64_t end) {
  const float* gradient = elements<float>(call.gradient) + begin;
  float* weight = elements<float>(call.weight) + begin;
  float* first = elements<float>(call.firstMoment) + begin;
  float* second = elements<float>(call.secondMoment) + begin;
  BFloat16* low = call.lowWeight ? elements<BFloat16>(call.lowWeight) + begin : nullptr;
  const double step = static_cast<double>(call.step);
  const float firstCorrection = static_cast<float>(1.0 / (1.0 - std::pow(static_cast<double>(call.beta1), step)));
  const float secondCorrection = static_cast<float>(1.0 / (1.0 - std::pow(static_cast<double>(call.beta2), step)));
  const float stepSize = call.learningRate * firstCorrection;
  const float decay = call.learningRate * call.weightDecay;
  const float beta1 = call.beta1, beta2 = call.beta2, epsilon = call.epsilon, scale = call.gradientScale;
  forVectors(end - begin, [=](std::int64_t i, auto extent) TANDEM_SIMD_LAMBDA {
    const Vector g = hn::Mul(load(gradient + i, extent), set(scale));
    const Vector m = hn::MulAdd(set(beta1), load(first + i, extent), hn::Mul(set(1.0f - beta1), g));
    const Vector v = hn::MulAdd(set(beta2), load(second + i, extent), hn::Mul(hn::Mul(set(1.0f - beta2), g), g));
    store(m, first + i, extent);
    store(v, second + i, extent);
    const Vector size = hn::Add(hn::Sqrt(hn::Mul(v, set(secondCorrection))), set(epsilon));
    const Vector update = hn::Div(hn::Mul(set(stepSize), m), size);
    const Vector old = load(weight + i, extent);
    const Vector w = hn::Sub(old, hn::MulAdd(set(decay), old, update));  // 1 - decay would round small decays away
    store(w, weight + i, extent);
    if (low != nullptr) store(w, low + i, extent);
  });
}

// The sum of squares of a block, each square and sum in double.
double squares(const float* values, std::int64_t count) {
  const hn::ScalableTag<double> doubles;
  const hn::Rebind<float, decltype(doubles)> floats;
  const auto step = static_cast<std::int64_t>(hn::Lanes(doubles));
  auto sum0 = hn::Zero(doubles), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  std::int64_t i = 0;
  for (; i + 4 * step <= count; i += 4 * step) {
    const auto x0 = hn::PromoteTo(doubles, hn::LoadU(floats, values + i));
    const auto x1 = hn::PromoteTo(doubles, hn::LoadU(floats, values + i + step));
    const auto x2 = hn::PromoteTo(doubles, hn::LoadU(floats, values + i + 2 * step));
    const auto x3 = hn::PromoteTo(doubles, hn::LoadU(floats, values + i + 3 * step));
    sum0 = hn::MulAdd(x0, x0, sum0);
    sum1 = hn::MulAdd(x1, x1, sum1);
    sum2 = hn::MulAdd(x2, x2, sum2);
    sum3 = hn::MulAdd(x3, x3, sum3);
  }
  double total = hn::GetLane(hn::SumOfLanes(doubles, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3))));
  for (; i < count; ++i) total += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  return total;
}

}  // namespace tandem::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::kernels::cpu {

HWY_EXPORT(adamW);
HWY_EXPORT(squares);

void run(const AdamW& call, Context& context) {
  parallelBlocks(context.threads, call.weight.shape.count(), 64, worthwhileElements / 4,
                 [&](std::int64_t begin, std::int64_t end, int) { HWY_DYNAMIC_DISPATCH(adamW)
                                                                  (call, begin, end); });
}

// Blocks of one size whatever the thread count, added up in their order: the same bits at any thread count.
void run(const SquaredNorm& call, Context& context) {
  constexpr std::int64_t blockSize = 16384;
  const std::int64_t count = call.input.shape.count();
  const std::int64_t blocks = (count + blockSize - 1) / blockSize;
  const float* values = elements<float>(call.input);
  auto* sums = reinterpret_cast<double*>(context.scratch.get(0, blocks * static_cast<std::int64_t>(sizeof(double))));
  parallelBlocks(context.threads, blocks, 1, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t block = begin; block < end; ++block) {
      const std::int64_t at = block * blockSize;
      sums[block] = HWY_DYNAMIC_DISPATCH(squares)(values + at, std::min(blockSize, count - at));
    }
  });
  double total = 0;
  for (std::int64_t block = 0; block < blocks; ++block) total += sums[block];
  *elements<double>(call.result) = total;
}

}  // namespace tandem::kernels::cpu
#endif
