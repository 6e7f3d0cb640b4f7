#include "common/tokenizer/detail/pair_learner.h"

#include <algorithm>
#include <array>
#include <limits>

#include "common/base/error.h"
#include "common/tokenizer/detail/word_hash.h"

namespace tandem::tokenizer::detail {
namespace {

constexpr TokenId wall = 0xFFFFFFFF;     // before and behind each word
constexpr TokenId nothing = 0xFFFFFFFE;  // inside a token

std::uint64_t keyOf(TokenId left, TokenId right) { return (static_cast<std::uint64_t>(left) << 32) | right; }

std::size_t hashOf(std::uint64_t key) { return static_cast<std::size_t>(mixBits(key, 0x9E3779B97F4A7C15)); }

}  // namespace

PairLearner::PairLearner(const WordCounts& counts) : lengths_(256, 1) {
  layOut(counts.sorted());
  countPairs();
}

void PairLearner::layOut(const std::vector<WordCounts::Word>& words) {
  std::size_t size = 1;
  for (const WordCounts::Word& word : words) size += word.bytes.size() + 1;
  if (size >= std::numeric_limits<Place>::max()) {
    throw base::Error(base::ErrorKind::badData, "the distinct words have " + std::to_string(size) +
                                                    " bytes, more than 2^32; train on a sample of the text");
  }
  cells_.reserve(size);
  wordOf_.reserve(size);
  cells_.push_back(wall);
  wordOf_.push_back(0);
  for (const WordCounts::Word& word : words) {
    const auto index = static_cast<std::uint32_t>(weights_.size());
    weights_.push_back(word.count);
    for (const char c : word.bytes) cells_.push_back(static_cast<unsigned char>(c));
    cells_.push_back(wall);
    wordOf_.insert(wordOf_.end(), word.bytes.size() + 1, index);
  }
}

// The first pairs are of bytes: counted by a plain table, so that the lists of places get their exact sizes.
void PairLearner::countPairs() {
  std::vector<std::int64_t> occurrences(65536);
  for (std::size_t i = 1; i + 1 < cells_.size(); ++i) {
    if (cells_[i] != wall && cells_[i + 1] != wall) ++occurrences[cells_[i] << 8 | cells_[i + 1]];
  }
  std::vector<PairIndex> indexes(65536);
  for (std::uint32_t both = 0; both < 65536; ++both) {
    if (occurrences[both] == 0) continue;
    indexes[both] = indexOf(keyOf(both >> 8, both & 255));
    pairs_[indexes[both]].places.reserve(static_cast<std::size_t>(occurrences[both]));
  }
  for (std::size_t i = 1; i + 1 < cells_.size(); ++i) {
    if (cells_[i] == wall || cells_[i + 1] == wall) continue;
    Pair& pair = pairs_[indexes[cells_[i] << 8 | cells_[i + 1]]];
    pair.places.push_back(static_cast<Place>(i));
    pair.count += weights_[wordOf_[i]];
  }
  for (PairIndex pair = 0; pair < pairs_.size(); ++pair) heap_.push_back({pairs_[pair].count, keys_[pair], pair});
  std::make_heap(heap_.begin(), heap_.end());
}

void PairLearner::growTable() {
  slots_.assign(std::max<std::size_t>(4096, 2 * slots_.size()), {});
  const std::size_t mask = slots_.size() - 1;
  for (PairIndex pair = 0; pair < keys_.size(); ++pair) {
    std::size_t place = hashOf(keys_[pair]) & mask;
    while (slots_[place].key != ~std::uint64_t{0}) place = (place + 1) & mask;
    slots_[place] = {keys_[pair], pair};
  }
}

PairLearner::PairIndex PairLearner::indexOf(std::uint64_t key) {
  if (2 * (keys_.size() + 1) > slots_.size()) growTable();
  const std::size_t mask = slots_.size() - 1;
  std::size_t place = hashOf(key) & mask;
  while (slots_[place].key != ~std::uint64_t{0}) {
    if (slots_[place].key == key) return slots_[place].pair;
    place = (place + 1) & mask;
  }
  const auto pair = static_cast<PairIndex>(pairs_.size());
  slots_[place] = {key, pair};
  pairs_.emplace_back();
  keys_.push_back(key);
  return pair;
}

std::optional<PairLearner::Best> PairLearner::takeBest() {
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end());
    Candidate& top = heap_.back();
    const std::int64_t count = pairs_[top.pair].count;
    if (count == top.count && count > 0) {
      const Best best{static_cast<TokenId>(top.key >> 32), static_cast<TokenId>(top.key), count};
      heap_.pop_back();
      return best;
    }
    if (count > 0 && count < top.count) {
      top.count = count;
      std::push_heap(heap_.begin(), heap_.end());
    } else {
      heap_.pop_back();  // gone, or risen and in the heap with the higher count too
    }
  }
  return std::nullopt;
}

void PairLearner::addPair(TokenId left, TokenId right, Place place, std::int64_t weight) {
  const PairIndex index = indexOf(keyOf(left, right));
  pairs_[index].count += weight;
  pairs_[index].places.push_back(place);
  grown_.push_back(index);
}

void PairLearner::takePair(TokenId left, TokenId right, std::int64_t weight) {
  pairs_[indexOf(keyOf(left, right))].count -= weight;
}

void PairLearner::join(const Best& pair, TokenId result, std::int64_t length) {
  if (lengths_.size() <= result) lengths_.resize(result + 1);
  lengths_[result] = static_cast<std::uint32_t>(length);
  const PairIndex joined = indexOf(keyOf(pair.left, pair.right));
  std::vector<Place> places = std::move(pairs_[joined].places);
  pairs_[joined].places.clear();
  // In order, so that of overlapping pairs (aaa) the left one is joined, as in encoding.
  if (!std::is_sorted(places.begin(), places.end())) std::sort(places.begin(), places.end());
  const std::uint32_t leftLength = lengths_[pair.left];
  const std::uint32_t rightLength = lengths_[pair.right];
  grown_.clear();
  for (const Place begin : places) {
    const Place middle = begin + leftLength;
    if (cells_[begin] != pair.left || cells_[middle] != pair.right) continue;
    const Place end = middle + rightLength;
    const std::int64_t weight = weights_[wordOf_[begin]];
    const TokenId before = cells_[begin - 1];
    const TokenId behind = cells_[end];
    cells_[middle - 1] = nothing;
    cells_[middle] = nothing;
    cells_[begin] = result;
    cells_[end - 1] = result;
    pairs_[joined].count -= weight;
    if (before != wall) {
      takePair(before, pair.left, weight);
      addPair(before, result, begin - lengths_[before], weight);
    }
    if (behind != wall) {
      takePair(pair.right, behind, weight);
      addPair(result, behind, begin, weight);
    }
  }
  std::sort(grown_.begin(), grown_.end());
  grown_.erase(std::unique(grown_.begin(), grown_.end()), grown_.end());
  for (const PairIndex index : grown_) {
    if (pairs_[index].count == 0) continue;
    heap_.push_back({pairs_[index].count, keys_[index], index});
    std::push_heap(heap_.begin(), heap_.end());
  }
}

}  // namespace tandem::tokenizer::detail
