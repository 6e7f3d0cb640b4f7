#include "common/sharding/flat_layout.h"

#include <algorithm>

#include "common/base/error.h"

namespace tandem::sharding {
namespace {

constexpr std::int64_t alignment = 16;  // elements: 64 bytes of float32

std::int64_t roundUp(std::int64_t value) { return (value + alignment - 1) / alignment * alignment; }

}  // namespace

FlatLayout::FlatLayout(std::span<const Named> parameters, int ranks, Ownership ownership, std::int64_t bucketElements)
    : ranks_(ranks) {
  TANDEM_ASSERT(ranks >= 1, "a layout needs a rank");
  place(parameters, bucketElements);
  if (ownership == Ownership::anywhere) {
    cutAnywhere();
  } else {
    cutAtParameters();
  }
}

void FlatLayout::place(std::span<const Named> parameters, std::int64_t bucketElements) {
  bucketBegins_ = {0};
  // By the sizes of the logical parameters, so that all ranks that split them cut at the same ones; and never in front
  // of what some of them lack: a bucket is complete with its first parameter's gradient, at the same node on all.
  std::int64_t filled = 0;
  for (const Named& named : parameters) {
    const auto bucket = static_cast<std::int32_t>(bucketBegins_.size() - 1);
    const std::int64_t count = named.shape.count();
    parameters_.push_back({.name = named.name,
                           .shape = named.shape,
                           .offset = count_,
                           .count = count,
                           .bucket = bucket,
                           .part = named.part ? *named.part : Part(named.shape)});
    TANDEM_ASSERT(parameters_.back().part.shape() == named.shape, "a parameter is not what its layout says");
    count_ += roundUp(count);
    filled += roundUp(parameters_.back().part.whole().count());
    const bool isLast = &named == &parameters.back();
    const Named* const next = isLast ? nullptr : &named + 1;
    const bool groupEnds = next != nullptr && next->group != named.group;
    const bool wouldSplit = next != nullptr && next->part && next->part->isOfOneRank();
    if (!groupEnds && (filled < bucketElements || wouldSplit)) continue;
    bucketBegins_.push_back(count_);
    filled = 0;
  }
  if (filled > 0 || bucketBegins_.size() == 1) bucketBegins_.push_back(count_);
}

void FlatLayout::cutAnywhere() {
  for (int bucket = 0; bucket < buckets(); ++bucket) {
    const std::int64_t units = bucketCount(bucket) / alignment;
    for (std::int64_t rank = 0; rank < ranks_; ++rank) {
      pieceCounts_.push_back((units * (rank + 1) / ranks_ - units * rank / ranks_) * alignment);
    }
  }
}

void FlatLayout::cutAtParameters() {
  pieceCounts_.assign(static_cast<std::size_t>(buckets()) * static_cast<std::size_t>(ranks_), 0);
  for (const FlatParameter& parameter : parameters_) {
    // The rank in whose equal share the middle of the parameter lies: monotonic in the offset, so pieces stay runs.
    const std::int64_t middle = parameter.offset + parameter.count / 2 - bucketBegin(parameter.bucket);
    const std::int64_t rank = std::min<std::int64_t>(middle * ranks_ / bucketCount(parameter.bucket), ranks_ - 1);
    pieceCounts_[static_cast<std::size_t>(parameter.bucket * ranks_ + rank)] += roundUp(parameter.count);
  }
}

std::int64_t FlatLayout::indexOf(const std::string& name) const {
  const auto found =
      std::find_if(parameters_.begin(), parameters_.end(), [&](const auto& p) { return p.name == name; });
  return found == parameters_.end() ? -1 : found - parameters_.begin();
}

std::span<const std::int64_t> FlatLayout::pieceCounts(int bucket) const {
  return std::span(pieceCounts_).subspan(static_cast<std::size_t>(bucket * ranks_), static_cast<std::size_t>(ranks_));
}

std::int64_t FlatLayout::pieceBegin(int bucket, int rank) const {
  std::int64_t begin = bucketBegin(bucket);
  for (int other = 0; other < rank; ++other) begin += pieceCounts(bucket)[static_cast<std::size_t>(other)];
  return begin;
}

std::int64_t FlatLayout::pieceShardOffset(int bucket, int rank) const {
  std::int64_t offset = 0;
  for (int earlier = 0; earlier < bucket; ++earlier) offset += pieceCounts(earlier)[static_cast<std::size_t>(rank)];
  return offset;
}

std::int64_t FlatLayout::shardCount(int rank) const { return pieceShardOffset(buckets(), rank); }

std::vector<OwnedRun> FlatLayout::ownedRuns(int rank) const {
  std::vector<OwnedRun> runs;
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    const FlatParameter& parameter = parameters_[index];
    const std::int64_t pieceStart = pieceBegin(parameter.bucket, rank);
    const std::int64_t pieceEnd = pieceStart + pieceCounts(parameter.bucket)[static_cast<std::size_t>(rank)];
    const std::int64_t begin = std::max(parameter.offset, pieceStart);
    const std::int64_t end = std::min(parameter.offset + parameter.count, pieceEnd);
    if (begin >= end) continue;
    runs.push_back({.parameter = static_cast<std::int64_t>(index),
                    .begin = begin - parameter.offset,
                    .count = end - begin,
                    .flatOffset = begin,
                    .shardOffset = pieceShardOffset(parameter.bucket, rank) + begin - pieceStart});
  }
  return runs;
}

std::vector<OwnedRun> FlatLayout::countedRuns(int rank) const {
  std::vector<OwnedRun> counted;
  for (const OwnedRun& run : ownedRuns(rank)) {
    const Part& part = parameters_[static_cast<std::size_t>(run.parameter)].part;
    if (part.isCopy()) continue;
    for (const Part::Held& held : part.held()) {
      if (held.firstHolder != part.rank()) continue;
      const std::int64_t begin = std::max(run.begin, held.elements.begin);
      const std::int64_t end = std::min(run.begin + run.count, held.elements.end());
      if (begin >= end) continue;
      counted.push_back({.parameter = run.parameter,
                         .begin = begin,
                         .count = end - begin,
                         .flatOffset = run.flatOffset + begin - run.begin,
                         .shardOffset = run.shardOffset + begin - run.begin});
    }
  }
  return counted;
}

}  // namespace tandem::sharding
