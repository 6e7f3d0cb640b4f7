#include "common/sharding/layout.h"

#include <algorithm>

#include "common/base/error.h"

namespace tandem::sharding {

Range evenShare(std::int64_t count, int ranks, int rank) {
  const std::int64_t begin = count * rank / ranks;
  return {begin, count * (rank + 1) / ranks - begin};
}

HeadShare headShare(std::int64_t heads, std::int64_t kvHeads, int ranks, int rank) {
  const std::int64_t group = heads / kvHeads;
  HeadShare share;
  if (ranks <= kvHeads) {
    share.kvHeads = evenShare(kvHeads, ranks, rank);
    share.heads = {share.kvHeads.begin * group, share.kvHeads.count * group};
    share.firstHolder = rank;
    return share;
  }
  // The ranks are dealt out over the key-value heads, then the queries of each over its ranks.
  const auto ranksOf = [&](std::int64_t kvHead) {
    return evenShare(ranks, static_cast<int>(kvHeads), static_cast<int>(kvHead));
  };
  std::int64_t kvHead = 0;
  while (ranksOf(kvHead).end() <= rank) ++kvHead;
  const Range holders = ranksOf(kvHead);
  share.kvHeads = {kvHead, 1};
  share.heads = evenShare(group, static_cast<int>(holders.count), static_cast<int>(rank - holders.begin));
  share.heads.begin += kvHead * group;
  share.firstHolder = static_cast<int>(holders.begin);
  share.holders = static_cast<int>(holders.count);
  return share;
}

Part::Part(const base::Shape& whole) : Part(whole, 0, {{.range = {0, whole[0]}}}, 0) {}

Part::Part(const base::Shape& whole, int axis, std::vector<HeldRange> ranges, int rank)
    : whole_(whole), axis_(axis), ranges_(std::move(ranges)), rank_(rank) {
  TANDEM_ASSERT(axis == 0 || (axis == 1 && whole.rank() == 2 && ranges_.size() <= 1), "no layout of that kind");
  std::int64_t end = 0;
  for (const HeldRange& held : ranges_) {
    TANDEM_ASSERT(held.range.begin >= end && held.range.end() <= whole[axis], "ranges ascend within their axis");
    end = held.range.end();
  }
}

base::Shape Part::shape() const {
  base::Shape shape = whole_;
  shape[axis_] = 0;
  for (const HeldRange& held : ranges_) shape[axis_] += held.range.count;
  return shape;
}

std::int64_t Part::rowElements() const {
  std::int64_t elements = 1;
  for (int axis = 1; axis < whole_.rank(); ++axis) elements *= whole_[axis];
  return elements;
}

std::vector<Strip> Part::strips(std::int64_t begin, std::int64_t count) const {
  std::vector<Strip> result;
  const std::int64_t end = begin + count;
  if (axis_ == 0) {
    std::int64_t partBegin = 0;
    for (const HeldRange& held : ranges_) {
      const std::int64_t partEnd = partBegin + held.range.count * rowElements();
      const std::int64_t from = std::max(begin, partBegin), to = std::min(end, partEnd);
      if (from < to) result.push_back({from, held.range.begin * rowElements() + from - partBegin, to - from});
      partBegin = partEnd;
    }
    return result;
  }
  // Columns: the rest of a row, whole rows, the beginning of a row.
  const Range columns = ranges_.empty() ? Range{} : ranges_[0].range;
  const auto wholeAt = [&](std::int64_t element) {
    return element / columns.count * whole_[1] + columns.begin + element % columns.count;
  };
  while (begin < end) {
    const std::int64_t restOfRow = columns.count - begin % columns.count;
    const std::int64_t rows = restOfRow == columns.count ? (end - begin) / columns.count : 0;
    const Strip strip = rows > 0 ? Strip{begin, wholeAt(begin), columns.count, rows, rows > 1 ? whole_[1] : 0}
                                 : Strip{begin, wholeAt(begin), std::min(restOfRow, end - begin)};
    result.push_back(strip);
    begin += strip.count * strip.repeats;
  }
  return result;
}

std::vector<Part::Held> Part::held() const {
  std::vector<Held> result;
  std::int64_t begin = 0;
  for (const HeldRange& each : ranges_) {
    const std::int64_t count = each.range.count * (axis_ == 0 ? rowElements() : whole_[0]);
    if (count > 0) result.push_back({{begin, count}, each.firstHolder, each.holders});
    begin += count;
  }
  return result;
}

}  // namespace tandem::sharding
