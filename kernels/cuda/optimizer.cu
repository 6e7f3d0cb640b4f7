// AdamW over flat buffers: one pass (flat.h), bound by memory with 28 bytes an element, 20 with bfloat16 moments. The
// 16-bit weights that the model computes with are written by the way.
#include <type_traits>

#include "kernels/adamw_factors.h"
#include "kernels/cuda/flat.h"
#include "kernels/cuda/operators.h"

namespace tandem::kernels::cuda {

namespace {

// base::philox (common/base/random.h) on the device.
struct RandomBlock {
  std::uint32_t word[4];

  __device__ __forceinline__ RandomBlock(std::uint64_t key, std::uint64_t block, std::uint64_t stream)
      : word{static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
             static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)} {
    std::uint32_t key0 = static_cast<std::uint32_t>(key), key1 = static_cast<std::uint32_t>(key >> 32);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * word[0];
      const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * word[2];
      word[0] = static_cast<std::uint32_t>(product1 >> 32) ^ word[1] ^ key0;
      word[1] = static_cast<std::uint32_t>(product1);
      word[2] = static_cast<std::uint32_t>(product0 >> 32) ^ word[3] ^ key1;
      word[3] = static_cast<std::uint32_t>(product0);
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
  }
  // word[place] without an address, so that the words stay in registers.
  __device__ __forceinline__ std::uint32_t at(std::uint64_t place) const {
    const std::uint32_t low = place % 2 == 0 ? word[0] : word[1], high = place % 2 == 0 ? word[2] : word[3];
    return place % 4 < 2 ? low : high;
  }
};

// One of the two bfloat16 around a value, by 16 random bits.
__device__ __forceinline__ float roundedBy(std::uint32_t random, float value) {
  const std::uint32_t bits = __float_as_uint(value);
  return value == value ? __uint_as_float((bits + random) & 0xffff0000u) : value;
}

// `Low` is float where there are no weights of 16 bits.
template <class Moment, class Low>
struct AdamWElements {
  static constexpr int vectors = 1;  // of each of four operands
  const float* gradient;
  float* weight;
  Moment *firstMoment, *secondMoment;
  Low* lowWeight;
  AdamWFactors factors;
  StochasticRounding rounding;

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
      values.weight[i] = old - fmaf(factors.decay, old, factors.stepSize * m / size);
      values.first[i] = m;
      values.second[i] = v;
    }
    if constexpr (std::is_same_v<Moment, __nv_bfloat16>) roundMoments(at, values);
    store(firstMoment + at, values.first);
    store(secondMoment + at, values.second);
    store(weight + at, values.weight);
    if constexpr (!std::is_same_v<Low, float>) store(lowWeight + at, values.weight);
  }

 private:
  template <int N>
  __device__ __forceinline__ void roundMoments(std::int64_t at, Values<N>& values) const {
    const auto element = static_cast<std::uint64_t>(rounding.firstElement + at);
    RandomBlock block(rounding.key, element / 4, rounding.stream);
#pragma unroll
    for (unsigned i = 0; i < N; ++i) {
      if (i > 0 && (element + i) % 4 == 0) block = RandomBlock(rounding.key, (element + i) / 4, rounding.stream);
      const std::uint32_t random = block.at(element + i);
      values.first[i] = roundedBy(random & 0xffffu, values.first[i]);
      values.second[i] = roundedBy(random >> 16, values.second[i]);
    }
  }
};

template <class Moment, class Low>
void runAdamW(const AdamW& call, Context& context) {
  const AdamWElements<Moment, Low> work{elements<float>(call.gradient),
                                        elements<float>(call.weight),
                                        elements<Moment>(call.firstMoment),
                                        elements<Moment>(call.secondMoment),
                                        elements<Low>(call.lowWeight),
                                        factorsOf(call),
                                        call.rounding};
  // Vectors of 4 elements: 16 bytes of the float32 operands, 8 of those of 16 bits.
  runFlat<4>(work, call.weight.shape.count(),
             takeVectors<4>(call.gradient, call.weight, call.firstMoment, call.secondMoment, call.lowWeight), "AdamW",
             context.stream);
}

}  // namespace

void run(const AdamW& call, Context& context) {
  withStorage(call.lowWeight ? call.lowWeight.type : DType::f32, "AdamW", [&](auto low) {
    if (call.firstMoment.type == DType::bf16) {
      runAdamW<__nv_bfloat16, decltype(low)>(call, context);
    } else {
      runAdamW<float, decltype(low)>(call, context);
    }
  });
}

}  // namespace tandem::kernels::cuda
