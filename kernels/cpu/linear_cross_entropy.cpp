// The projection onto the vocabulary with its cross entropy, chunk of rows by chunk of rows.
//
// A chunk's logits become, in place, the gradient with respect to them, so that they are all the memory it takes. Rows
// without a target are left out of the products altogether.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/float_rows.h"
#include "kernels/cpu/matrix_product.h"
#include "kernels/cpu/operators.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/cpu/storage.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_cross_entropy.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::kernels::cpu::HWY_NAMESPACE {

float largest(const float* values, std::int64_t count) {
  const Floats floats;
  const std::int64_t step = lanes();
  Vector top0 = set(values[0]), top1 = top0, top2 = top0, top3 = top0;
  std::int64_t i = 0;
  for (; i + 4 * step <= count; i += 4 * step) {
    top0 = hn::Max(top0, hn::LoadU(floats, values + i));
    top1 = hn::Max(top1, hn::LoadU(floats, values + i + step));
    top2 = hn::Max(top2, hn::LoadU(floats, values + i + 2 * step));
    top3 = hn::Max(top3, hn::LoadU(floats, values + i + 3 * step));
  }
  float top = hn::GetLane(hn::MaxOfLanes(floats, hn::Max(hn::Max(top0, top1), hn::Max(top2, top3))));
  for (; i < count; ++i) top = std::max(top, values[i]);
  return top;
}

// values[i] = e^(values[i] - top) when they are wanted; the sum of them all.
float exponentials(float* values, std::int64_t count, float top, bool keep) {
  const std::int64_t whole = count / lanes() * lanes();
  float total = sumVectors(whole, [=](std::int64_t i, auto extent, Vector sum) TANDEM_SIMD_LAMBDA {
    const Vector e = exponential(hn::Sub(load(values + i, extent), set(top)));
    if (keep) store(e, values + i, extent);
    return hn::Add(sum, e);
  });
  for (std::int64_t i = whole; i < count; ++i) {
    const float e = std::exp(values[i] - top);
    if (keep) values[i] = e;
    total += e;
  }
  return total;
}

// Loss of one row of logits; with gradients the row becomes gradScale * (softmax - one at the target).
float lossOfRow(float* logits, std::int64_t vocabulary, std::int64_t target, bool gradients, float gradScale) {
  const float top = largest(logits, vocabulary);
  const float wanted = logits[target];
  const float total = exponentials(logits, vocabulary, top, gradients);
  if (gradients) {
    const float factor = gradScale / total;
    forVectors(vocabulary, [=](std::int64_t i, auto extent) TANDEM_SIMD_LAMBDA {
      store(hn::Mul(load(logits + i, extent), set(factor)), logits + i, extent);
    });
    logits[target] -= gradScale;
  }
  return top + std::log(total) - wanted;
}

float logSumExpOfRow(float* logits, std::int64_t vocabulary) {
  const float top = largest(logits, vocabulary);
  return top + std::log(exponentials(logits, vocabulary, top, false));
}

// Logits become gradScale * (e^(logit - logSumExp) - one at the target); a target below 0 is outside of the part.
void gradientsOfRow(float* logits, std::int64_t vocabulary, std::int64_t target, float logSumExp, float gradScale) {
  exponentials(logits, vocabulary, logSumExp, true);
  forVectors(vocabulary, [=](std::int64_t i, auto extent) TANDEM_SIMD_LAMBDA {
    store(hn::Mul(load(logits + i, extent), set(gradScale)), logits + i, extent);
  });
  if (target >= 0) logits[target] -= gradScale;
}

}  // namespace tandem::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::kernels::cpu {

HWY_EXPORT(lossOfRow);
HWY_EXPORT(logSumExpOfRow);
HWY_EXPORT(gradientsOfRow);

namespace {

constexpr int logitsSlot = 0, weightSlot = 1, inputSlot = 2, gradInputSlot = 3, liveSlot = 4, convertSlot = 5;
constexpr std::int64_t logitsBytes = std::int64_t{32} << 20;

// Where the weight is that of a part of the vocabulary: one of `partials` and `logSumExp` is given.
struct Part {
  std::int64_t firstToken = 0;
  float* partials = nullptr;         // [2, rows]; to be written
  const float* logSumExp = nullptr;  // [rows], of the whole vocabulary

  bool isPart() const { return partials != nullptr || logSumExp != nullptr; }
};

// One call: which rows have a target, and how many of them make a chunk.
struct Work {
  const LinearCrossEntropy& call;
  Part part;
  std::int64_t rows, width, vocabulary;
  std::int32_t* live = nullptr;  // the rows with a target, ascending
  std::int64_t liveCount = 0;
  std::int64_t chunk = 1;
  bool direct = false;  // float32 and no row left out: chunks are the operands themselves
};

Work prepare(const LinearCrossEntropy& call, const Part& part, Context& context) {
  Work work{call, part, call.input.shape.rows(), call.weight.shape[1], call.weight.shape[0]};
  work.live = reinterpret_cast<std::int32_t*>(
      context.scratch.get(liveSlot, work.rows * static_cast<std::int64_t>(sizeof(std::int32_t))));
  const std::int32_t* targets = elements<std::int32_t>(call.targets);
  for (std::int64_t row = 0; row < work.rows; ++row) {
    TANDEM_ASSERT(targets[row] >= -1 && (part.isPart() || targets[row] < work.vocabulary),
                  "a target is outside of the vocabulary");
    if (targets[row] >= 0) work.live[work.liveCount++] = static_cast<std::int32_t>(row);
  }
  work.direct = call.input.type == DType::f32 && work.liveCount == work.rows;
  const std::int64_t rowBytes = std::max<std::int64_t>(1, work.vocabulary) * static_cast<std::int64_t>(sizeof(float));
  const std::int64_t fitting = std::max<std::int64_t>(1, logitsBytes / rowBytes);
  const std::int64_t chunks = std::max<std::int64_t>(1, (work.liveCount + fitting - 1) / fitting);
  work.chunk = std::max<std::int64_t>(1, (work.liveCount + chunks - 1) / chunks);
  return work;
}

// The chunk's rows of the input as floats, one after another.
const float* gatherInput(const Work& work, std::int64_t first, std::int64_t count, Context& context) {
  if (work.direct) return elements<float>(work.call.input) + first * work.width;
  float* gathered = scratchFloats(inputSlot, count * work.width, context);
  for (std::int64_t i = 0; i < count; ++i) {
    const float* row = floatRows(work.call.input, work.live[first + i], 1, convertSlot, context);
    std::copy(row, row + work.width, gathered + i * work.width);
  }
  return gathered;
}

void scatterGradInput(const Work& work, std::int64_t first, std::int64_t count, float* gradients, Context& context) {
  const Shape shape{1, work.width};
  auto* to = static_cast<std::byte*>(work.call.gradInput.data);
  const std::int64_t rowBytes = work.width * base::byteSize(work.call.gradInput.type);
  for (std::int64_t i = 0; i < count; ++i) {
    run(Cast{ConstTensorView(gradients + i * work.width, DType::f32, shape),
             TensorView(to + work.live[first + i] * rowBytes, work.call.gradInput.type, shape)},
        context);
  }
}

// Calls body(first, count, floats) for panels of the weight's rows: one when it is float32.
template <class Body>
void overWeight(const Work& work, Context& context, const Body& body) {
  const std::int64_t panel = work.call.weight.type == DType::f32 ? std::max<std::int64_t>(1, work.vocabulary)
                                                                 : convertibleRows(work.vocabulary, work.width);
  for (std::int64_t first = 0; first < work.vocabulary; first += panel) {
    const std::int64_t count = std::min(panel, work.vocabulary - first);
    body(first, count, floatRows(work.call.weight, first, count, weightSlot, context));
  }
}

void logitsOfChunk(const Work& work, std::int64_t count, const float* input, float* logits, Context& context) {
  overWeight(work, context, [&](std::int64_t first, std::int64_t columns, const float* weight) {
    context.matrixProduct->multiply(ProductShape{.transposeB = true,
                                                 .m = count,
                                                 .n = columns,
                                                 .k = work.width,
                                                 .leadingA = work.width,
                                                 .leadingB = work.width,
                                                 .leadingC = work.vocabulary},
                                    input, weight, logits + first);
  });
}

// Of row `row` of a part, whose logits these are: either what the part contributes, or their gradients.
void treatRowOfPart(const Work& work, std::int64_t row, float* logits) {
  std::int64_t target = elements<std::int32_t>(work.call.targets)[row] - work.part.firstToken;
  if (target < 0 || target >= work.vocabulary) target = -1;
  if (work.part.partials != nullptr) {
    work.part.partials[row] = HWY_DYNAMIC_DISPATCH(logSumExpOfRow)(logits, work.vocabulary);
    work.part.partials[work.rows + row] = target >= 0 ? logits[target] : 0.0f;
  } else {
    HWY_DYNAMIC_DISPATCH(gradientsOfRow)
    (logits, work.vocabulary, target, work.part.logSumExp[row], elements<float>(work.call.gradScale)[0]);
  }
}

void lossesOfChunk(const Work& work, std::int64_t first, std::int64_t count, float* logits, Context& context) {
  const bool gradients = static_cast<bool>(work.call.gradInput);
  const float* gradScales = gradients ? elements<float>(work.call.gradScale) : nullptr;
  const bool ofEachRow = gradients && work.call.gradScale.shape.count() > 1;
  const std::int32_t* targets = elements<std::int32_t>(work.call.targets);
  float* losses = elements<float>(work.call.losses);
  parallelBlocks(context.threads, count, 1, worthwhileRows(work.vocabulary * 8),
                 [&](std::int64_t begin, std::int64_t end, int) {
                   for (std::int64_t i = begin; i < end; ++i) {
                     const std::int32_t row = work.live[first + i];
                     if (work.part.isPart()) {
                       treatRowOfPart(work, row, logits + i * work.vocabulary);
                       continue;
                     }
                     const float gradScale = gradients ? gradScales[ofEachRow ? row : 0] : 0.0f;
                     losses[row] = HWY_DYNAMIC_DISPATCH(lossOfRow)(logits + i * work.vocabulary, work.vocabulary,
                                                                   targets[row], gradients, gradScale);
                   }
                 });
}

void gradientsOfChunk(const Work& work, std::int64_t first, std::int64_t count, const float* input,
                      const float* gradLogits, Context& context) {
  const LinearCrossEntropy& call = work.call;
  float* gradInput = work.direct ? elements<float>(call.gradInput) + first * work.width
                                 : scratchFloats(gradInputSlot, count * work.width, context);
  overWeight(work, context, [&](std::int64_t firstTerm, std::int64_t terms, const float* weight) {
    context.matrixProduct->multiply(ProductShape{.m = count,
                                                 .n = work.width,
                                                 .k = terms,
                                                 .leadingA = work.vocabulary,
                                                 .leadingB = work.width,
                                                 .leadingC = work.width,
                                                 .beta = firstTerm > 0 ? 1.0f : 0.0f},
                                    gradLogits + firstTerm, weight, gradInput);
  });
  if (!work.direct) scatterGradInput(work, first, count, gradInput, context);
  if (!call.gradWeight) return;
  context.matrixProduct->multiply(ProductShape{.transposeA = true,
                                               .m = work.vocabulary,
                                               .n = work.width,
                                               .k = count,
                                               .leadingA = work.vocabulary,
                                               .leadingB = work.width,
                                               .leadingC = work.width,
                                               .beta = first > 0 || call.accumulateWeight ? 1.0f : 0.0f},
                                  gradLogits, input, elements<float>(call.gradWeight));
}

void runInChunks(const LinearCrossEntropy& call, const Part& part, Context& context) {
  const Work work = prepare(call, part, context);
  if (work.liveCount < work.rows) {
    if (call.losses) run(Fill{call.losses, 0.0f}, context);
    if (part.partials != nullptr) std::fill(part.partials, part.partials + 2 * work.rows, 0.0f);
    if (call.gradInput) run(Fill{call.gradInput, 0.0f}, context);
  }
  if (work.liveCount == 0 && call.gradWeight && !call.accumulateWeight) run(Fill{call.gradWeight, 0.0f}, context);
  for (std::int64_t first = 0; first < work.liveCount; first += work.chunk) {
    const std::int64_t count = std::min(work.chunk, work.liveCount - first);
    float* logits = scratchFloats(logitsSlot, count * work.vocabulary, context);
    const float* input = gatherInput(work, first, count, context);
    logitsOfChunk(work, count, input, logits, context);
    lossesOfChunk(work, first, count, logits, context);
    if (call.gradInput) gradientsOfChunk(work, first, count, input, logits, context);
  }
}

}  // namespace

void run(const LinearCrossEntropy& call, Context& context) { runInChunks(call, {}, context); }

void run(const PartialCrossEntropy& call, Context& context) {
  runInChunks({.input = call.input, .weight = call.weight, .targets = call.targets},
              {.firstToken = call.firstToken, .partials = elements<float>(call.partials)}, context);
}

void run(const PartialCrossEntropyBackward& call, Context& context) {
  runInChunks({.input = call.input,
               .weight = call.weight,
               .targets = call.targets,
               .gradScale = call.gradScale,
               .gradInput = call.gradInput,
               .gradWeight = call.gradWeight,
               .accumulateWeight = call.accumulateWeight},
              {.firstToken = call.firstToken, .logSumExp = elements<float>(call.logSumExp)}, context);
}

void run(const MergeCrossEntropy& call, Context&) {
  const std::int64_t rows = call.targets.shape.count(), parts = call.partials.shape[0];
  const std::int32_t* targets = elements<std::int32_t>(call.targets);
  const float* partials = elements<float>(call.partials);
  for (std::int64_t row = 0; row < rows; ++row) {
    float top = partials[row], sum = 0, wanted = 0;
    for (std::int64_t part = 1; part < parts; ++part) top = std::max(top, partials[part * 2 * rows + row]);
    for (std::int64_t part = 0; part < parts; ++part) {
      sum += std::exp(partials[part * 2 * rows + row] - top);
      wanted += partials[(part * 2 + 1) * rows + row];
    }
    const float logSumExp = targets[row] >= 0 ? top + std::log(sum) : 0.0f;
    elements<float>(call.logSumExp)[row] = logSumExp;
    elements<float>(call.losses)[row] = targets[row] >= 0 ? logSumExp - wanted : 0.0f;
  }
}

}  // namespace tandem::kernels::cpu
#endif
