// Dropout, and multiplication by a factor.
#include "kernels/cpu/operators.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/storage.h"
#include "kernels/dropout_mask.h"

namespace tandem::kernels::cpu {
namespace {

template <class Element>
void scaleElements(const Dropout& call, std::int64_t begin, std::int64_t end) {
  const auto* input = elements<Element>(call.input);
  auto* output = elements<Element>(call.output);
  for (std::int64_t i = begin; i < end; ++i) output[i] = Element(static_cast<float>(input[i]) * call.factor);
}

template <class Element>
void dropElements(const Dropout& call, std::int64_t begin, std::int64_t end) {
  const auto* input = elements<Element>(call.input);
  const auto* keys = elements<std::int32_t>(call.keys);
  auto* output = elements<Element>(call.output);
  const std::int64_t width = call.input.shape.last();
  const std::uint32_t threshold = dropoutThreshold(call.rate);
  for (std::int64_t i = begin; i < end;) {
    const std::int64_t row = i / width, rowEnd = std::min(end, (row + 1) * width);
    const std::uint64_t stream = dropoutStream(keys[2 * row], keys[2 * row + 1], call.purpose);
    for (; i < rowEnd; ++i) {
      const bool dropped = isDropped(stream, static_cast<std::uint64_t>(i - row * width), threshold);
      output[i] = Element(dropped ? 0.0f : static_cast<float>(input[i]) * call.factor);
    }
  }
}

}  // namespace

void run(const Dropout& call, Context& context) {
  parallelBlocks(context.threads, call.output.shape.count(), 64, worthwhileElements,
                 [&](std::int64_t begin, std::int64_t end, int) {
                   withElement(call.output.type, [&](auto* type) {
                     using Element = std::remove_pointer_t<decltype(type)>;
                     call.keys ? dropElements<Element>(call, begin, end) : scaleElements<Element>(call, begin, end);
                   });
                 });
}

}  // namespace tandem::kernels::cpu
