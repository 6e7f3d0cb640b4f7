#pragma once
// What the attention kernels share and no instruction set changes: strided heads, and which keys a query sees.

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/storage.h"
#include "kernels/tensor_view.h"

namespace tandem::kernels::cpu {

// [batch, time, head, headSize] somewhere in memory; strides in elements, the last axis dense.
template <class Element>
struct Heads {
  Element* data = nullptr;
  std::int64_t batchStride = 0, timeStride = 0, headStride = 0;

  Element* at(std::int64_t batch, std::int64_t time, std::int64_t head) const {
    return data + batch * batchStride + time * timeStride + head * headStride;
  }
};

template <class Element>
Heads<const Element> headsOf(const ConstTensorView& view) {
  return {elements<Element>(view), view.strides[0], view.strides[1], view.strides[2]};
}
template <class Element>
Heads<Element> headsOf(const TensorView& view) {
  return {elements<Element>(view), view.strides[0], view.strides[1], view.strides[2]};
}

// The documentStart operand; without one a row is one document.
class DocumentStarts {
 public:
  explicit DocumentStarts(const ConstTensorView& view)
      : data_(static_cast<const std::int32_t*>(view.data)), batchStride_(view ? view.strides[0] : 0) {}
  DocumentStarts() = default;
  std::int32_t at(std::int64_t batch, std::int64_t time) const {
    return data_ == nullptr ? 0 : data_[batch * batchStride_ + time];
  }

 private:
  const std::int32_t* data_ = nullptr;
  std::int64_t batchStride_ = 0;
};

// The first and last key that a query sees among the `keys` of a piece of a row; first > last when it sees none. `own`
// and `documentStart` are counted from the piece's first key.
struct KeySight {
  std::int32_t first = 0, last = 0;
};
inline KeySight sightOf(std::int64_t own, std::int64_t documentStart, std::int64_t window, std::int64_t keys) {
  const std::int64_t byWindow = window > 0 ? own - window + 1 : 0;
  const std::int64_t last = std::min(own, keys - 1);
  // No further behind the last than one, so that ranges of several queries stay what they are without this one.
  const std::int64_t first =
      std::clamp<std::int64_t>(std::max(documentStart, byWindow), 0, std::max<std::int64_t>(last + 1, 0));
  return {static_cast<std::int32_t>(first), static_cast<std::int32_t>(std::max<std::int64_t>(last, -1))};
}

struct Range {
  std::int64_t begin = 0, end = 0;
  bool empty() const { return begin >= end; }
};

inline std::int64_t roundDown(std::int64_t value, std::int64_t multiple) { return value / multiple * multiple; }
inline std::int64_t roundUp(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Cuts a thread's share of scratch memory into pieces that begin at cache lines. Without memory it only counts.
class Carver {
 public:
  explicit Carver(std::byte* memory) : memory_(memory) {}
  template <class Item>
  Item* take(std::int64_t count) {
    Item* piece = memory_ == nullptr ? nullptr : reinterpret_cast<Item*>(memory_ + bytes_);
    // One line more than asked, so that pieces of a power of two do not all begin in the same set of the cache.
    bytes_ += roundUp(count * static_cast<std::int64_t>(sizeof(Item)), 64) + 64;
    return piece;
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::byte* memory_;
  std::int64_t bytes_ = 0;
};

}  // namespace tandem::kernels::cpu
