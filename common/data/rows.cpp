#include "common/data/rows.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "common/base/error.h"
#include "common/data/sample_order.h"

namespace tandem::data {
namespace {

// Where the part of a document that fits `places` begins, given which of its tokens may be targets; documents that fit
// begin at 0. At least one token from 1 on may be a target.
std::int64_t beginOfKept(std::span<const std::uint8_t> mayBeTarget, std::int64_t places) {
  const auto length = std::ssize(mayBeTarget);
  if (length <= places + 1) return 0;
  const auto first = std::find(mayBeTarget.begin() + 1, mayBeTarget.end(), 1) - mayBeTarget.begin();
  if (first <= places) return 0;
  const auto end = std::find(mayBeTarget.begin() + first, mayBeTarget.end(), 0) - mayBeTarget.begin();
  return std::min(first - 1, end - (places + 1));
}

}  // namespace

Rows::Rows(const Dataset& dataset, std::int64_t sequenceLength, bool crossDocuments)
    : dataset_(dataset),
      sequenceLength_(sequenceLength),
      crossDocuments_(crossDocuments),
      packed_(dataset.hasLossMask() && !crossDocuments) {
  TANDEM_ASSERT(sequenceLength >= 1, "rows have a length");
  if (!packed_) return;
  const bool pairs = dataset.description().pairs;
  pack(pairs ? onlyPairs(choosePieces()) : choosePieces(), pairs ? 2 : 1);
  if (pieces_.empty()) {
    throw base::Error(base::ErrorKind::badData,
                      "'" + dataset.path().string() + "' has no " +
                          (pairs ? "pair of two answers that differ in rows of " + std::to_string(sequenceLength) +
                                       " tokens: there is nothing to prefer"
                                 : "document with a target: its /loss_mask leaves nothing to learn"));
  }
}

// All of a row; of a pair half of one, or what the other document leaves of it.
std::int64_t Rows::placesFor(std::int64_t document) const {
  if (!dataset_.description().pairs) return sequenceLength_;
  const auto other = static_cast<std::size_t>(document ^ 1);
  const std::int64_t taken = dataset_.documentOffsets()[other + 1] - dataset_.documentOffsets()[other] - 1;
  return std::max(sequenceLength_ / 2, sequenceLength_ - taken);
}

std::vector<Rows::Piece> Rows::choosePieces() {
  std::vector<Piece> pieces;
  std::vector<std::uint8_t> mask;
  for (std::int64_t document = 0; document < dataset_.documentCount(); ++document) {
    const std::int64_t begin = dataset_.documentOffsets()[static_cast<std::size_t>(document)];
    const std::int64_t end = dataset_.documentOffsets()[static_cast<std::size_t>(document + 1)];
    mask.resize(static_cast<std::size_t>(end - begin));
    dataset_.readLossMask(begin, mask);
    std::ranges::transform(mask, mask.begin(), [](std::uint8_t value) -> std::uint8_t { return value != 0; });
    if (std::find(mask.begin() + 1, mask.end(), 1) == mask.end()) {
      withoutTarget_.push_back(document);
      continue;
    }
    const std::int64_t most = placesFor(document);
    const std::int64_t skipped = beginOfKept(mask, most);
    const std::int64_t places = std::min(most, end - begin - skipped - 1);
    if (places < end - begin - 1) cut_.push_back(document);
    pieces.push_back({.document = document, .begin = begin + skipped, .count = places});
  }
  return pieces;
}

bool Rows::areAlike(const Piece& one, const Piece& other) const {
  if (one.count != other.count) return false;
  const auto length = static_cast<std::size_t>(one.count + 1);
  std::vector<std::int32_t> tokens(length), otherTokens(length);
  dataset_.readTokens(one.begin, tokens);
  dataset_.readTokens(other.begin, otherTokens);
  if (tokens != otherTokens) return false;
  std::vector<std::uint8_t> mask(length), otherMask(length);
  dataset_.readLossMask(one.begin, mask);
  dataset_.readLossMask(other.begin, otherMask);
  return mask == otherMask;
}

std::vector<Rows::Piece> Rows::onlyPairs(const std::vector<Piece>& pieces) {
  std::vector<Piece> pairs;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const bool begins = pieces[i].document % 2 == 0;
    if (begins && i + 1 < pieces.size() && pieces[i + 1].document == pieces[i].document + 1) {
      if (areAlike(pieces[i], pieces[i + 1])) {
        pairsAlike_.push_back(pieces[i].document / 2);
      } else {
        pairs.insert(pairs.end(), {pieces[i], pieces[i + 1]});
      }
      ++i;
    } else {
      withoutTarget_.push_back(pieces[i].document);
    }
  }
  std::ranges::sort(withoutTarget_);
  return pairs;
}

// Best fit, longest first, of so many pieces each that stand together.
void Rows::pack(const std::vector<Piece>& pieces, std::size_t together) {
  std::vector<std::size_t> order(pieces.size() / together);
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto placesOf = [&](std::size_t index) {
    std::int64_t places = 0;
    for (std::size_t i = index * together; i < (index + 1) * together; ++i) places += pieces[i].count;
    return places;
  };
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return placesOf(a) > placesOf(b); });
  std::vector<std::vector<Piece>> rows;
  std::multimap<std::int64_t, std::size_t> rowsByRoom;
  for (const std::size_t index : order) {
    const std::int64_t places = placesOf(index);
    const auto fitting = rowsByRoom.lower_bound(places);
    std::int64_t room = sequenceLength_;
    std::size_t row = rows.size();
    if (fitting == rowsByRoom.end()) {
      rows.emplace_back();
    } else {
      room = fitting->first;
      row = fitting->second;
      rowsByRoom.erase(fitting);
    }
    const auto first = pieces.begin() + static_cast<std::ptrdiff_t>(index * together);
    rows[row].insert(rows[row].end(), first, first + static_cast<std::ptrdiff_t>(together));
    rowsByRoom.emplace(room - places, row);
  }
  offsets_ = {0};
  for (std::vector<Piece>& row : rows) {
    std::ranges::sort(row, {}, &Piece::document);
    pieces_.insert(pieces_.end(), row.begin(), row.end());
    offsets_.push_back(std::ssize(pieces_));
  }
}

std::int64_t Rows::trainingCount() const {
  return packed_ ? std::ssize(offsets_) - 1 : trainingWindows(dataset_.tokenCount(), sequenceLength_);
}

std::int64_t Rows::evaluationCount() const {
  return packed_ ? std::ssize(offsets_) - 1 : evaluationWindows(dataset_.tokenCount(), sequenceLength_);
}

void Rows::fill(Batch& batch, std::int64_t row, std::int64_t index) const {
  if (!packed_) return fillRow(batch, row, dataset_, index, crossDocuments_);
  TANDEM_ASSERT(row >= 0 && row < batch.rows && batch.sequenceLength == sequenceLength_, "row outside the batch");
  TANDEM_ASSERT(index >= 0 && index < trainingCount(), "row outside the dataset");
  std::vector<std::int32_t> tokens;
  std::vector<std::uint8_t> mayBeTarget;
  std::int64_t start = 0;
  const auto at = [&](std::int64_t place) { return static_cast<std::size_t>(row * sequenceLength_ + place); };
  for (std::int64_t i = offsets_[static_cast<std::size_t>(index)]; i < offsets_[static_cast<std::size_t>(index + 1)];
       ++i) {
    const Piece& piece = pieces_[static_cast<std::size_t>(i)];
    tokens.resize(static_cast<std::size_t>(piece.count + 1));
    mayBeTarget.resize(tokens.size());
    dataset_.readTokens(piece.begin, tokens);
    dataset_.readLossMask(piece.begin, mayBeTarget);
    for (std::int64_t t = 0; t < piece.count; ++t) {
      const auto here = static_cast<std::size_t>(t), next = here + 1;
      batch.tokens[at(start + t)] = tokens[here];
      batch.documentStart[at(start + t)] = static_cast<std::int32_t>(start);
      batch.positions[at(start + t)] = static_cast<std::int32_t>(t);
      batch.targets[at(start + t)] = mayBeTarget[next] != 0 ? tokens[next] : noTarget;
      batch.targetCount += mayBeTarget[next] != 0;
    }
    batch.documents.push_back(
        {.begin = static_cast<std::int64_t>(at(start)), .count = piece.count, .document = piece.document});
    start += piece.count;
  }
  for (std::int64_t t = start; t < sequenceLength_; ++t) {  // padding: a document of its own
    batch.documentStart[at(t)] = static_cast<std::int32_t>(start);
    batch.positions[at(t)] = static_cast<std::int32_t>(t - start);
  }
}

}  // namespace tandem::data
