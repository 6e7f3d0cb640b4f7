#include "kernels/cpu/fp8_rounding.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/storage.h"

namespace tandem::kernels::cpu {

namespace {

constexpr int firstSlot = 6;  // of two; linear.cpp has those below

template <class Element>
float largestOf(const Element* from, std::int64_t count, int threads) {
  std::vector<float> parts(static_cast<std::size_t>(std::max(threads, 1)), 0.0f);
  parallelBlocks(threads, count, 1, worthwhileElements, [&](std::int64_t begin, std::int64_t end, int block) {
    float largest = 0;
    for (std::int64_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(static_cast<float>(from[i])));
    parts[static_cast<std::size_t>(block)] = largest;
  });
  return *std::max_element(parts.begin(), parts.end());
}

}  // namespace

ConstTensorView Fp8Rounding::operator()(int number, const ConstTensorView& operand, fp8::Format format, float scale,
                                        float& largest) const {
  const std::int64_t count = operand.shape.count();
  std::byte* const memory = context_.scratch.get(firstSlot + number, count * base::byteSize(operand.type));
  withElement(operand.type, [&]<class Element>(Element*) {
    const auto* from = elements<Element>(operand);
    auto* to = reinterpret_cast<Element*>(memory);
    largest = largestOf(from, count, context_.threads);
    const float factor = scale > 0 ? scale : fp8::scaleFor(format, largest);
    parallelBlocks(context_.threads, count, 1, worthwhileElements, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t i = begin; i < end; ++i) {
        to[i] = Element(fp8::rounded(format, static_cast<float>(from[i]) * factor) / factor);
      }
    });
  });
  return {memory, operand.type, operand.shape};
}

}  // namespace tandem::kernels::cpu
