// AdamW and the squared norm over flat runs of parameters.
#include <algorithm>
#include <cmath>

#include "kernels/adamw_factors.h"
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

// a * b + c rounded once, on targets without the instruction too: AdamW's bits are part of the contract.
HWY_INLINE Vector fused(Vector a, Vector b, Vector c) {
#if HWY_NATIVE_FMA
  return hn::MulAdd(a, b, c);
#else
  HWY_ALIGN float left[HWY_MAX_BYTES / sizeof(float)], right[HWY_MAX_BYTES / sizeof(float)],
      sum[HWY_MAX_BYTES / sizeof(float)];
  hn::Store(a, Floats(), left);
  hn::Store(b, Floats(), right);
  hn::Store(c, Floats(), sum);
  for (std::size_t i = 0; i < hn::Lanes(Floats()); ++i) sum[i] = std::fma(left[i], right[i], sum[i]);
  return hn::Load(Floats(), sum);
#endif
}

// Elements whose random words are made at once, in whole blocks of the generator.
constexpr std::int64_t roundedTogether = 256;
constexpr std::size_t blocksTogether = roundedTogether / 4 + 1;

// base::philox of `blocksTogether` counters from `firstBlock` on, side by side, which the compiler makes vectors of.
void randomWords(const StochasticRounding& rounding, std::uint64_t firstBlock, std::uint32_t* words) {
  constexpr std::uint64_t multiplier0 = 0xD2511F53u, multiplier1 = 0xCD9E8D57u;
  std::uint32_t key0 = static_cast<std::uint32_t>(rounding.key), key1 = static_cast<std::uint32_t>(rounding.key >> 32);
  std::uint32_t c0[blocksTogether], c1[blocksTogether], c2[blocksTogether], c3[blocksTogether];
  for (std::size_t i = 0; i < blocksTogether; ++i) {
    c0[i] = static_cast<std::uint32_t>(firstBlock + i);
    c1[i] = static_cast<std::uint32_t>((firstBlock + i) >> 32);
    c2[i] = static_cast<std::uint32_t>(rounding.stream);
    c3[i] = static_cast<std::uint32_t>(rounding.stream >> 32);
  }
  for (int round = 0; round < 10; ++round) {
    for (std::size_t i = 0; i < blocksTogether; ++i) {
      const std::uint64_t product0 = multiplier0 * c0[i], product1 = multiplier1 * c2[i];
      c0[i] = static_cast<std::uint32_t>(product1 >> 32) ^ c1[i] ^ key0;
      c1[i] = static_cast<std::uint32_t>(product1);
      c2[i] = static_cast<std::uint32_t>(product0 >> 32) ^ c3[i] ^ key1;
      c3[i] = static_cast<std::uint32_t>(product0);
    }
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  for (std::size_t i = 0; i < blocksTogether; ++i) {
    words[4 * i] = c0[i];
    words[4 * i + 1] = c1[i];
    words[4 * i + 2] = c2[i];
    words[4 * i + 3] = c3[i];
  }
}

// Moments of float32 are stored as they are; those of bfloat16 are rounded by a half of their random word.
template <bool upperHalf, class Extent>
HWY_INLINE void storeMoment(Vector value, float* to, const std::uint32_t*, Extent extent) {
  store(value, to, extent);
}
template <bool upperHalf, class Extent>
HWY_INLINE void storeMoment(Vector value, BFloat16* to, const std::uint32_t* random, Extent extent) {
  const Words words;
  const auto word = hn::LoadU(words, random);
  const auto half = upperHalf ? hn::ShiftRight<16>(word) : hn::And(word, hn::Set(words, 0xffffu));
  const auto bits = hn::BitCast(words, value);
  const auto isNan = hn::RebindMask(words, hn::Ne(value, value));
  const auto quiet = hn::Or(bits, hn::Set(words, 0x400000u));
  const auto rounded = hn::And(hn::IfThenElse(isNan, quiet, hn::Add(bits, half)), hn::Set(words, 0xffff0000u));
  store(hn::BitCast(Floats(), rounded), to, extent);  // exact
}

// One pass over gradient, moments and weights.
template <class Moment, class Low>
void adamWOf(const AdamW& call, std::int64_t begin, std::int64_t end) {
  const AdamWFactors f = factorsOf(call);
  const float* gradient = elements<float>(call.gradient);
  float* weight = elements<float>(call.weight);
  Moment* first = elements<Moment>(call.firstMoment);
  Moment* second = elements<Moment>(call.secondMoment);
  Low* low = elements<Low>(call.lowWeight);
  HWY_ALIGN std::uint32_t words[4 * blocksTogether + HWY_MAX_BYTES / sizeof(std::uint32_t)] = {};
  constexpr bool rounds = std::is_same_v<Moment, BFloat16>;
  constexpr std::int64_t together = rounds ? roundedTogether : std::int64_t{1} << 62;
  for (std::int64_t from = begin; from < end; from += together) {
    const std::int64_t element = call.rounding.firstElement + from;
    if constexpr (rounds) randomWords(call.rounding, static_cast<std::uint64_t>(element / 4), words);
    const std::uint32_t* random = words + element % 4;
    forVectors(std::min(together, end - from), [&](std::int64_t at, auto extent) TANDEM_SIMD_LAMBDA {
      const std::int64_t i = from + at;
      const Vector g = hn::Mul(load(gradient + i, extent), set(f.gradientScale));
      const Vector m = fused(set(f.beta1), load(first + i, extent), hn::Mul(set(f.first), g));
      const Vector v = fused(set(f.beta2), load(second + i, extent), hn::Mul(hn::Mul(set(f.second), g), g));
      storeMoment<false>(m, first + i, random + (rounds ? at : 0), extent);
      storeMoment<true>(v, second + i, random + (rounds ? at : 0), extent);
      const Vector size = hn::Add(hn::Sqrt(hn::Mul(v, set(f.secondCorrection))), set(f.epsilon));
      const Vector update = hn::Div(hn::Mul(set(f.stepSize), m), size);
      const Vector old = load(weight + i, extent);
      const Vector w = hn::Sub(old, fused(set(f.decay), old, update));
      store(w, weight + i, extent);
      if (low != nullptr) store(w, low + i, extent);
    });
  }
}

void adamW(const AdamW& call, std::int64_t begin, std::int64_t end) {
  withElement(call.lowWeight ? call.lowWeight.type : DType::f32, [&](auto* type) HWY_ATTR {
    using Low = std::remove_pointer_t<decltype(type)>;
    if (call.firstMoment.type == DType::bf16) {
      adamWOf<BFloat16, Low>(call, begin, end);
    } else {
      adamWOf<float, Low>(call, begin, end);
    }
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
                 [&](std::int64_t begin, std::int64_t end, int) {
                   HWY_DYNAMIC_DISPATCH(adamW)
                   (call, begin, end);
                 });
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
