// Rotary position embedding over the fused projection, with the optional RMS norm of queries and keys before it.
//
// Sines and cosines are computed once a row and shared by its heads. Angles are products in double, reduced by pi/2 in
// double and only then rounded, so that position 100000 turns as exactly as position 1.
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rotary.cpp"
#include <cmath>
#include <cstring>
#include <type_traits>

#include "hwy/foreach_target.h"
#include "kernels/cpu/operators.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/storage.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::kernels::cpu::HWY_NAMESPACE {

constexpr std::int64_t weightBlockRows = 64;  // rows whose gradients of the weights are summed together

using Doubles = hn::ScalableTag<double>;
using HalfFloats = hn::Rebind<float, Doubles>;
using HalfIntegers = hn::Rebind<std::int32_t, Doubles>;

// sin and cos of position * frequency for as many frequencies as a vector of doubles holds. With angle = n pi/2 + r and
// |r| <= pi/4 the polynomials of Moshier's Cephes (sinf, cosf) give both of r, and n says which is which.
HWY_INLINE void sinesAndCosines(double position, const float* frequencies, float* sines, float* cosines) {
  const Doubles doubles;
  const HalfFloats floats;
  const HalfIntegers integers;
  const auto angle = hn::Mul(hn::Set(doubles, position), hn::PromoteTo(doubles, hn::LoadU(floats, frequencies)));
  const auto turns = hn::Round(hn::Mul(angle, hn::Set(doubles, 0.63661977236758134308)));
  const auto r = hn::DemoteTo(floats, hn::NegMulAdd(turns, hn::Set(doubles, 1.57079632679489661923), angle));
  const auto quadrant = hn::DemoteTo(integers, turns);

  const auto square = hn::Mul(r, r);
  auto sine = hn::MulAdd(hn::Set(floats, -1.9515295891e-4f), square, hn::Set(floats, 8.3321608736e-3f));
  sine = hn::MulAdd(sine, square, hn::Set(floats, -1.6666654611e-1f));
  sine = hn::MulAdd(hn::Mul(sine, square), r, r);
  auto cosine = hn::MulAdd(hn::Set(floats, 2.443315711809948e-5f), square, hn::Set(floats, -1.388731625493765e-3f));
  cosine = hn::MulAdd(cosine, square, hn::Set(floats, 4.166664568298827e-2f));
  cosine =
      hn::MulAdd(hn::Mul(cosine, square), square, hn::NegMulAdd(hn::Set(floats, 0.5f), square, hn::Set(floats, 1.0f)));

  const auto one = hn::Set(integers, 1);
  const auto exchanged = hn::RebindMask(floats, hn::Eq(hn::And(quadrant, one), one));
  const auto sineSign = hn::ShiftLeft<30>(hn::And(quadrant, hn::Set(integers, 2)));
  const auto cosineSign = hn::ShiftLeft<30>(hn::And(hn::Add(quadrant, one), hn::Set(integers, 2)));
  const auto signedSine = hn::Xor(hn::IfThenElse(exchanged, cosine, sine), hn::BitCast(floats, sineSign));
  const auto signedCosine = hn::Xor(hn::IfThenElse(exchanged, sine, cosine), hn::BitCast(floats, cosineSign));
  hn::StoreU(signedSine, floats, sines);
  hn::StoreU(signedCosine, floats, cosines);
}

// The vectors that a thread works with, in its share of scratch memory; each has room for whole vectors.
struct RotaryScratch {
  static std::int64_t floatsOfThread(std::int64_t headSize) { return 6 * room(headSize); }
  RotaryScratch(float* memory, const HeadLayout& layout, const ConstTensorView& givenFrequencies)
      : half(layout.headSize / 2), frequencies(memory) {
    const std::int64_t size = room(layout.headSize);
    sines = memory + size;
    cosines = memory + 2 * size;
    head = memory + 3 * size;
    std::fill_n(frequencies, size, 0.0f);
    std::memcpy(frequencies, givenFrequencies.data, static_cast<std::size_t>(half) * sizeof(float));
  }
  void setPosition(std::int32_t position) {
    const auto step = static_cast<std::int64_t>(hn::Lanes(Doubles()));
    for (std::int64_t i = 0; i < half; i += step) {
      sinesAndCosines(static_cast<double>(position), frequencies + i, sines + i, cosines + i);
    }
  }
  std::int64_t half;
  float *frequencies, *sines, *cosines;
  float* head;  // one head, or two

 private:
  static std::int64_t room(std::int64_t headSize) { return (headSize + 2 * lanes() + 15) / 16 * 16; }
};

// Turns the pairs (i, i + half) by the row's angles; direction 1 forwards, -1 back. In place when from is to.
template <class From, class To>
HWY_INLINE void rotateHead(const From* from, const RotaryScratch& scratch, float direction, To* to) {
  const std::int64_t half = scratch.half;
  forVectors(half, [&](std::int64_t i, auto extent) TANDEM_SIMD_LAMBDA {
    const Vector sine = hn::Mul(set(direction), load(scratch.sines + i, extent));
    const Vector cosine = load(scratch.cosines + i, extent);
    const Vector first = load(from + i, extent), second = load(from + half + i, extent);
    store(hn::NegMulAdd(second, sine, hn::Mul(first, cosine)), to + i, extent);
    store(hn::MulAdd(first, sine, hn::Mul(second, cosine)), to + half + i, extent);
  });
}

// A weight of QK-norm in float32: where it lies, or converted into `room`.
inline const float* weightAsFloat(const ConstTensorView& weight, std::int64_t headSize, float* room) {
  if (!weight) return nullptr;
  if (weight.type == DType::f32) return static_cast<const float*>(weight.data);
  withElement(weight.type, [&](auto* element) {
    const auto* values = elements<std::remove_pointer_t<decltype(element)>>(weight);
    for (std::int64_t i = 0; i < headSize; ++i) room[i] = static_cast<float>(values[i]);
  });
  return room;
}

// --- forward ---------------------------------------------------------------------------------------------------------

// normalised = input / sqrt(mean(input^2) + epsilon) * weight; returns the factor before the weight.
template <class Element>
HWY_INLINE float normaliseHead(const Element* input, const float* weight, float epsilon, std::int64_t size,
                               float* normalised) {
  const float squares = sumVectors(size, [&](std::int64_t i, auto extent, Vector sum) TANDEM_SIMD_LAMBDA {
    const Vector value = load(input + i, extent);
    return hn::MulAdd(value, value, sum);
  });
  const float reciprocal = 1.0f / std::sqrt(squares / static_cast<float>(size) + epsilon);
  forVectors(size, [&](std::int64_t i, auto extent) TANDEM_SIMD_LAMBDA {
    const Vector scaled = hn::Mul(load(input + i, extent), set(reciprocal));
    store(hn::Mul(scaled, load(weight + i, extent)), normalised + i, extent);
  });
  return reciprocal;
}

template <class Element>
void rotateRows(const Rotary& op, const float* queryWeight, const float* keyWeight, std::int64_t begin,
                std::int64_t end, RotaryScratch scratch) {
  const HeadLayout& layout = op.layout;
  const std::int64_t size = layout.headSize, turned = layout.heads + layout.kvHeads, width = layout.width();
  for (std::int64_t row = begin; row < end; ++row) {
    scratch.setPosition(static_cast<const std::int32_t*>(op.positions.data)[row]);
    const Element* input = elements<Element>(op.input) + row * width;
    Element* output = elements<Element>(op.output) + row * width;
    for (std::int64_t h = 0; h < turned; ++h) {
      if (queryWeight == nullptr) {
        rotateHead(input + h * size, scratch, 1.0f, output + h * size);
        continue;
      }
      const float reciprocal =
          normaliseHead(input + h * size, h < layout.heads ? queryWeight : keyWeight, op.epsilon, size, scratch.head);
      static_cast<float*>(op.reciprocal.data)[row * turned + h] = reciprocal;
      rotateHead(scratch.head, scratch, 1.0f, output + h * size);
    }
    if (input != output) {
      std::memcpy(output + turned * size, input + turned * size,
                  static_cast<std::size_t>(layout.kvHeads * size) * sizeof(Element));
    }
  }
}

void runRotary(const Rotary& op, Context& context) {
  const std::int64_t size = op.layout.headSize, rows = op.input.shape.rows();
  const std::int64_t floats = RotaryScratch::floatsOfThread(size);
  auto* memory = reinterpret_cast<float*>(
      context.scratch.get(0, (floats * context.threads + 2 * size) * static_cast<std::int64_t>(sizeof(float))));
  float* weights = memory + floats * context.threads;
  const float* queryWeight = weightAsFloat(op.queryWeight, size, weights);
  const float* keyWeight = weightAsFloat(op.keyWeight, size, weights + size);
  withElement(op.input.type, [&](auto* element) {
    using Element = std::remove_pointer_t<decltype(element)>;
    parallelBlocks(context.threads, rows, 1, worthwhileRows(op.layout.width()),
                   [&](std::int64_t begin, std::int64_t end, int block) {
                     rotateRows<Element>(op, queryWeight, keyWeight, begin, end,
                                         RotaryScratch(memory + floats * block, op.layout, op.frequencies));
                   });
  });
}

// --- backward --------------------------------------------------------------------------------------------------------

// The gradient of the norm of one head, from that of its scaled values: with x = input * reciprocal and g = gradient *
// weight, gradWeight += gradient * x and gradInput = reciprocal * (g - x * mean(g * x)).
template <class Element>
HWY_INLINE void normBackward(const float* gradient, const Element* input, const float* weight, float reciprocal,
                             std::int64_t size, float* gradWeight, Element* gradInput) {
  const float products = sumVectors(size, [&](std::int64_t i, auto extent, Vector sum) TANDEM_SIMD_LAMBDA {
    const Vector product = hn::Mul(load(gradient + i, extent), hn::Mul(load(input + i, extent), set(reciprocal)));
    store(hn::Add(load(gradWeight + i, extent), product), gradWeight + i, extent);
    return hn::MulAdd(product, load(weight + i, extent), sum);
  });
  const float mean = products / static_cast<float>(size);
  forVectors(size, [&](std::int64_t i, auto extent) TANDEM_SIMD_LAMBDA {
    const Vector scaled = hn::Mul(load(input + i, extent), set(reciprocal));
    const Vector inner = hn::Mul(load(gradient + i, extent), load(weight + i, extent));
    store(hn::Mul(set(reciprocal), hn::NegMulAdd(scaled, set(mean), inner)), gradInput + i, extent);
  });
}

// `gradWeights` takes the rows' sums of gradQueryWeight and gradKeyWeight, one after the other; with QK-norm.
template <class Element>
void rotateRowsBack(const RotaryBackward& op, const float* queryWeight, const float* keyWeight, std::int64_t begin,
                    std::int64_t end, RotaryScratch& scratch, float* gradWeights) {
  const HeadLayout& layout = op.layout;
  const std::int64_t size = layout.headSize, turned = layout.heads + layout.kvHeads, width = layout.width();
  for (std::int64_t row = begin; row < end; ++row) {
    scratch.setPosition(static_cast<const std::int32_t*>(op.positions.data)[row]);
    const Element* gradOutput = elements<Element>(op.gradOutput) + row * width;
    Element* gradInput = elements<Element>(op.gradInput) + row * width;
    for (std::int64_t h = 0; h < turned; ++h) {
      if (queryWeight == nullptr) {
        rotateHead(gradOutput + h * size, scratch, -1.0f, gradInput + h * size);
        continue;
      }
      const bool isQuery = h < layout.heads;
      rotateHead(gradOutput + h * size, scratch, -1.0f, scratch.head);
      normBackward(scratch.head, elements<Element>(op.input) + row * width + h * size,
                   isQuery ? queryWeight : keyWeight, static_cast<const float*>(op.reciprocal.data)[row * turned + h],
                   size, isQuery ? gradWeights : gradWeights + size, gradInput + h * size);
    }
    if (gradInput != gradOutput) {
      std::memcpy(gradInput + turned * size, gradOutput + turned * size,
                  static_cast<std::size_t>(layout.kvHeads * size) * sizeof(Element));
    }
  }
}

// target (+)= the blocks' sums, added in order; `sums` is [block][2][headSize] and `which` 0 for queries, 1 for keys.
inline void addWeightGradients(const TensorView& target, const float* sums, std::int64_t blocks, std::int64_t which,
                               std::int64_t headSize, bool accumulate) {
  auto* gradient = static_cast<float*>(target.data);
  for (std::int64_t i = 0; i < headSize; ++i) {
    float sum = 0;
    for (std::int64_t block = 0; block < blocks; ++block) sum += sums[(2 * block + which) * headSize + i];
    gradient[i] = accumulate ? gradient[i] + sum : sum;
  }
}

void runRotaryBackward(const RotaryBackward& op, Context& context) {
  const std::int64_t size = op.layout.headSize, rows = op.gradOutput.shape.rows();
  const std::int64_t blocks = (rows + weightBlockRows - 1) / weightBlockRows;
  const std::int64_t floats = RotaryScratch::floatsOfThread(size), sumCount = op.queryWeight ? blocks * 2 * size : 0;
  auto* memory = reinterpret_cast<float*>(context.scratch.get(
      0, (floats * context.threads + 2 * size + sumCount) * static_cast<std::int64_t>(sizeof(float))));
  float* weights = memory + floats * context.threads;
  float* sums = weights + 2 * size;
  const float* queryWeight = weightAsFloat(op.queryWeight, size, weights);
  const float* keyWeight = weightAsFloat(op.keyWeight, size, weights + size);
  std::fill_n(sums, sumCount, 0.0f);
  withElement(op.gradOutput.type, [&](auto* element) {
    using Element = std::remove_pointer_t<decltype(element)>;
    parallelBlocks(context.threads, rows, weightBlockRows, worthwhileRows(op.layout.width()),
                   [&](std::int64_t begin, std::int64_t end, int thread) {
                     RotaryScratch scratch(memory + floats * thread, op.layout, op.frequencies);
                     for (std::int64_t row = begin; row < end; row += weightBlockRows) {
                       rotateRowsBack<Element>(op, queryWeight, keyWeight, row, std::min(end, row + weightBlockRows),
                                               scratch, sums + row / weightBlockRows * 2 * size);
                     }
                   });
  });
  if (!op.queryWeight) return;
  addWeightGradients(op.gradQueryWeight, sums, blocks, 0, size, op.accumulate);
  addWeightGradients(op.gradKeyWeight, sums, blocks, 1, size, op.accumulate);
}

}  // namespace tandem::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::kernels::cpu {

HWY_EXPORT(runRotary);
HWY_EXPORT(runRotaryBackward);
void run(const Rotary& op, Context& context) { HWY_DYNAMIC_DISPATCH(runRotary)(op, context); }
void run(const RotaryBackward& op, Context& context) { HWY_DYNAMIC_DISPATCH(runRotaryBackward)(op, context); }

}  // namespace tandem::kernels::cpu
#endif
