#pragma once
// Which part of a parameter a rank holds: layouts as data.
//
// A parameter has a logical name and shape, and a rank holds some ranges of one of its axes, one after the other, as a
// tensor of its own: all of it; the rows of some heads (of queries, of keys, of values); some columns; the rows of some
// tokens. Ranges need not be of one size, a rank may hold nothing, and a range may be held by several tensor ranks
// (norms by all of them, key-value heads that are fewer than ranks by those whose queries read them): then its gradient
// is the sum over its holders, and the first of them speaks for it where it must be counted or saved once.
// Inside its part, what the replicas of a rank share out is a flat run of elements (flat_layout.h).

#include <cstdint>
#include <vector>

#include "common/base/shape.h"
#include "kernels/backend.h"

namespace tandem::sharding {

struct Range {
  std::int64_t begin = 0;
  std::int64_t count = 0;
  std::int64_t end() const { return begin + count; }
  bool operator==(const Range&) const = default;
};

// `count` things dealt out in runs as equal as can be: those of `rank`.
Range evenShare(std::int64_t count, int ranks, int rank);

// A range of an axis, and the tensor ranks [firstHolder, firstHolder + holders) that hold it.
struct HeldRange {
  Range range;
  int firstHolder = 0;
  int holders = 1;
  bool operator==(const HeldRange&) const = default;
};

// The heads of a tensor rank. Each rank has as many query heads for each of its key-value heads; where there are more
// ranks than key-value heads, each has one of these, shared with its neighbours.
struct HeadShare {
  Range heads;
  Range kvHeads;
  int firstHolder = 0;  // of the key-value heads
  int holders = 1;

  kernels::HeadLayout layout(std::int64_t headSize) const {
    return {.heads = heads.count, .kvHeads = kvHeads.count, .headSize = headSize};
  }
};
HeadShare headShare(std::int64_t heads, std::int64_t kvHeads, int ranks, int rank);

// A run of elements of the part, and where they lie in the flattened whole: `repeats` times `count` consecutive ones,
// `stride` apart.
struct Strip {
  std::int64_t partBegin = 0;
  std::int64_t wholeBegin = 0;
  std::int64_t count = 0;
  std::int64_t repeats = 1;
  std::int64_t stride = 0;
};

// What one rank holds of a parameter.
class Part {
 public:
  Part() = default;
  // All of it, by this rank alone.
  explicit Part(const base::Shape& whole);
  // Ascending ranges of an axis (0, or 1 of a matrix, then at most one range), of tensor rank `rank`.
  Part(const base::Shape& whole, int axis, std::vector<HeldRange> ranges, int rank);

  const base::Shape& whole() const { return whole_; }
  const std::vector<HeldRange>& ranges() const { return ranges_; }
  int axis() const { return axis_; }
  base::Shape shape() const;  // of what this rank holds
  bool empty() const { return shape().count() == 0; }

  // The elements [begin, begin + count) of the part.
  std::vector<Strip> strips(std::int64_t begin, std::int64_t count) const;

  // A run of elements of the part with the same holders.
  struct Held {
    Range elements;
    int firstHolder = 0;
    int holders = 1;
  };
  std::vector<Held> held() const;
  int rank() const { return rank_; }

  // The same parameter is held by an earlier pipeline stage as well, which speaks for it (tied embeddings).
  bool isCopy() const { return isCopy_; }
  void markCopy() { isCopy_ = true; }

  // One tensor rank holds all of it and the others nothing, since one alone adds it to what all compute together.
  bool isOfOneRank() const { return isOfOneRank_; }
  void markOfOneRank() { isOfOneRank_ = true; }

 private:
  std::int64_t rowElements() const;  // of the whole, behind axis 0

  base::Shape whole_;
  int axis_ = 0;
  std::vector<HeldRange> ranges_;
  int rank_ = 0;
  bool isCopy_ = false;
  bool isOfOneRank_ = false;
};

}  // namespace tandem::sharding
