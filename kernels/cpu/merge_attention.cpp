// Attention over two sets of keys put together.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/operators.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/storage.h"

namespace tandem::kernels::cpu {

namespace {

// Of one query: the log-sum-exp over both sets, and what each contributes to the output.
struct Shares {
  float logSumExp, own, other;
};
Shares sharesOf(float own, float other) {
  const float top = std::max(own, other);
  if (top == -std::numeric_limits<float>::infinity()) return {top, 0, 0};
  const float both = top + std::log(std::exp(own - top) + std::exp(other - top));
  return {both, std::exp(own - both), std::exp(other - both)};
}

// The heads of one row of queries.
template <class Element>
void mergeRow(const MergeAttention& op, std::int64_t batch, std::int64_t time) {
  const std::int64_t heads = op.output.shape[2], size = op.output.shape[3];
  for (std::int64_t head = 0; head < heads; ++head) {
    const std::int64_t statistic = (batch * heads + head) * op.output.shape[1] + time;
    float& logSumExp = elements<float>(op.logSumExp)[statistic];
    const Shares shares = sharesOf(logSumExp, elements<float>(op.otherLogSumExp)[statistic]);
    logSumExp = shares.logSumExp;
    const auto at = [&](const auto& strides) { return batch * strides[0] + time * strides[1] + head * strides[2]; };
    Element* output = elements<Element>(op.output) + at(op.output.strides);
    const Element* other = elements<Element>(op.otherOutput) + at(op.otherOutput.strides);
    for (std::int64_t i = 0; i < size; ++i) {
      output[i] = Element(shares.own * static_cast<float>(output[i]) + shares.other * static_cast<float>(other[i]));
    }
  }
}

}  // namespace

void run(const MergeAttention& op, Context& context) {
  withElement(op.output.type, [&](auto* type) {
    using Element = std::remove_pointer_t<decltype(type)>;
    const std::int64_t time = op.output.shape[1], width = op.output.shape[2] * op.output.shape[3];
    parallelBlocks(context.threads, op.output.shape[0] * time, 1, worthwhileRows(width),
                   [&](std::int64_t begin, std::int64_t end, int) {
                     for (std::int64_t row = begin; row < end; ++row) mergeRow<Element>(op, row / time, row % time);
                   });
  });
}

}  // namespace tandem::kernels::cpu
