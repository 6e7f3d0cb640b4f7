// Rows of a table picked by token, and the gradients of the tables.
#include <algorithm>

#include "kernels/cpu/operators.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/cpu/storage.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/embedding.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::kernels::cpu::HWY_NAMESPACE {

// A part of the tables: rows outside of it are zeros.
template <class Element>
void gatherPart(const Embedding& call, std::int64_t row) {
  const std::int64_t width = call.weight.shape[1];
  Element* to = elements<Element>(call.output) + row * width;
  std::fill(to, to + width, Element(0.0f));
  const auto add = [&](const ConstTensorView& table, std::int64_t index) {
    if (index < 0 || index >= table.shape[0]) return;
    const Element* from = elements<Element>(table) + index * width;
    forVectors(width, [=](std::int64_t i, auto extent) TANDEM_SIMD_LAMBDA {
      store(hn::Add(load(to + i, extent), load(from + i, extent)), to + i, extent);
    });
  };
  add(call.weight, elements<std::int32_t>(call.tokens)[row] - call.part.firstToken);
  if (call.positionWeight) {
    add(call.positionWeight, elements<std::int32_t>(call.positions)[row] - call.part.firstPosition);
  }
}

void gather(const Embedding& call, std::int64_t begin, std::int64_t end) {
  withElement(call.weight.type, [&](auto* type) HWY_ATTR {
    using Element = std::remove_pointer_t<decltype(type)>;
    const std::int64_t width = call.weight.shape[1];
    const std::int32_t* tokens = elements<std::int32_t>(call.tokens);
    const std::int32_t* positions = elements<std::int32_t>(call.positions);
    for (std::int64_t row = begin; row < end; ++row) {
      if (call.part.isPart) {
        gatherPart<Element>(call, row);
        continue;
      }
      const Element* from = elements<Element>(call.weight) + tokens[row] * width;
      Element* to = elements<Element>(call.output) + row * width;
      if (!call.positionWeight) {
        std::copy(from, from + width, to);
        continue;
      }
      const Element* position = elements<Element>(call.positionWeight) + positions[row] * width;
      forVectors(width, [=](std::int64_t i, auto extent) TANDEM_SIMD_LAMBDA {
        store(hn::Add(load(from + i, extent), load(position + i, extent)), to + i, extent);
      });
    }
  });
}

// Adds columns [begin, end) of the first `count` rows in the given order to the table's rows of their indices, which
// count from `firstIndex`.
void scatterAdd(const ConstTensorView& rows, const std::int32_t* indices, std::int64_t firstIndex,
                const std::int32_t* order, std::int64_t count, float* table, std::int64_t begin, std::int64_t end) {
  withElement(rows.type, [&](auto* type) HWY_ATTR {
    using Element = std::remove_pointer_t<decltype(type)>;
    const std::int64_t width = rows.shape.last();
    for (std::int64_t place = 0; place < count; ++place) {
      const std::int64_t row = order[place];
      const Element* from = elements<Element>(rows) + row * width + begin;
      float* to = table + (indices[row] - firstIndex) * width + begin;
      forVectors(end - begin, [=](std::int64_t i, auto extent) TANDEM_SIMD_LAMBDA {
        store(hn::Add(load(to + i, extent), load(from + i, extent)), to + i, extent);
      });
    }
  });
}

}  // namespace tandem::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::kernels::cpu {

HWY_EXPORT(gather);
HWY_EXPORT(scatterAdd);

namespace {

void checkIndices(const ConstTensorView& indices, std::int64_t limit, const char* what) {
  const std::int32_t* values = elements<std::int32_t>(indices);
  const std::int64_t count = indices.shape.count();
  bool inside = true;
  for (std::int64_t i = 0; i < count; ++i) inside = inside && values[i] >= 0 && values[i] < limit;
  TANDEM_ASSERT(inside, std::string(what) + " outside of its table");
}

struct SortedRows {
  const std::int32_t* order;
  std::int64_t count;
};

// The rows whose index is in [first, first + limit), sorted by index, equal ones in their own order (counting sort), so
// that a table row stays in the cache while it is added to.
SortedRows sortedRows(const std::int32_t* indices, std::int64_t count, std::int64_t first, std::int64_t limit,
                      Context& context) {
  const std::int64_t bytes = (limit + 1 + count) * static_cast<std::int64_t>(sizeof(std::int32_t));
  auto* places = reinterpret_cast<std::int32_t*>(context.scratch.get(0, bytes));
  std::int32_t* order = places + limit + 1;
  std::fill(places, places + limit + 1, 0);
  const auto isHere = [&](std::int64_t row) { return indices[row] >= first && indices[row] - first < limit; };
  for (std::int64_t row = 0; row < count; ++row) {
    if (isHere(row)) ++places[indices[row] - first + 1];
  }
  for (std::int64_t index = 0; index < limit; ++index) places[index + 1] += places[index];
  const std::int64_t here = places[limit];
  for (std::int64_t row = 0; row < count; ++row) {
    if (isHere(row)) order[places[indices[row] - first]++] = static_cast<std::int32_t>(row);
  }
  return {order, here};
}

// Threads share the columns, so every sum is taken in the same order at any thread count.
void addToTable(const ConstTensorView& indices, std::int64_t first, const ConstTensorView& rows,
                const TensorView& table, bool accumulate, Context& context) {
  if (!accumulate) run(Fill{table, 0.0f}, context);
  if (indices.shape.count() == 0) return;
  const std::int32_t* values = elements<std::int32_t>(indices);
  const SortedRows sorted = sortedRows(values, indices.shape.count(), first, table.shape[0], context);
  if (sorted.count == 0) return;
  float* to = elements<float>(table);
  parallelBlocks(context.threads, table.shape[1], 16, std::max<std::int64_t>(16, worthwhileElements / sorted.count),
                 [&](std::int64_t begin, std::int64_t end, int) {
                   HWY_DYNAMIC_DISPATCH(scatterAdd)(rows, values, first, sorted.order, sorted.count, to, begin, end);
                 });
}

}  // namespace

void run(const Embedding& call, Context& context) {
  if (!call.part.isPart) {
    checkIndices(call.tokens, call.weight.shape[0], "a token is");
    if (call.positionWeight) checkIndices(call.positions, call.positionWeight.shape[0], "a position is");
  }
  parallelBlocks(context.threads, call.tokens.shape.count(), 1, worthwhileRows(call.weight.shape[1]),
                 [&](std::int64_t begin, std::int64_t end, int) {
                   HWY_DYNAMIC_DISPATCH(gather)
                   (call, begin, end);
                 });
}

void run(const EmbeddingBackward& call, Context& context) {
  if (!call.part.isPart) checkIndices(call.tokens, call.gradWeight.shape[0], "a token is");
  addToTable(call.tokens, call.part.firstToken, call.gradOutput, call.gradWeight, call.accumulateWeight, context);
  if (!call.gradPositionWeight) return;
  if (!call.part.isPart) checkIndices(call.positions, call.gradPositionWeight.shape[0], "a position is");
  addToTable(call.positions, call.part.firstPosition, call.gradOutput, call.gradPositionWeight,
             call.accumulatePositionWeight, context);
}

}  // namespace tandem::kernels::cpu
#endif
