#include "common/tokenizer/detail/merger.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <queue>
#include <string>

#include "common/base/error.h"

namespace tandem::tokenizer::detail {
namespace {

[[noreturn]] void throwMissingByte(unsigned char byte, std::size_t offset) {
  constexpr const char* digits = "0123456789ABCDEF";
  throw base::Error(base::ErrorKind::badData,
                    std::string("the vocabulary has no token for the byte 0x") + digits[byte >> 4] + digits[byte & 15] +
                        " (at byte " + std::to_string(offset) +
                        " of a word) and no unknown token to stand for it; use a tokenizer that has all 256 bytes, or "
                        "take that byte out of the text");
}

}  // namespace

Merger::Merger(const Definition& definition, const Vocabulary& vocabulary)
    : slots_(std::bit_ceil(2 * definition.merges.size() + 2)),
      filter_(std::bit_ceil(definition.merges.size() / 8 + 1)),
      byteMerges_(65536, noMerge),
      unknown_(definition.unknown),
      fusesUnknown_(definition.fusesUnknown) {
  for (int byte = 0; byte < 256; ++byte) {
    byteTokens_[static_cast<std::size_t>(byte)] = vocabulary.ofByte(static_cast<unsigned char>(byte));
  }
  std::uint64_t rank = 0;
  for (std::size_t i = 0; i < definition.merges.size(); ++i) {
    const Merge& merge = definition.merges[i];
    const bool sharesRank = definition.ranksByToken && i > 0 && definition.merges[i - 1].result == merge.result;
    if (i > 0 && !sharesRank) ++rank;
    insert(merge.left, merge.right, (rank << 32) | merge.result);
  }
  if (rank >> 23 != 0) {
    throw base::Error(base::ErrorKind::badData,
                      "the tokenizer has " + std::to_string(rank + 1) + " ranks of merges; at most 2^23 are supported");
  }
  hasAllBytes_ = std::find(byteTokens_.begin(), byteTokens_.end(), noToken) == byteTokens_.end();
  for (std::size_t both = 0; both < byteMerges_.size(); ++both) {
    byteMerges_[both] = find(byteTokens_[both >> 8], byteTokens_[both & 255]);
  }
}

void Merger::insert(TokenId left, TokenId right, RankedToken merged) {
  const std::uint64_t pair = pairKey(left, right);
  const std::size_t hash = pairHash(pair);
  filter_[(hash >> 38) & (filter_.size() - 1)] |= std::uint64_t{1} << (hash >> 32 & 63);
  const std::size_t mask = slots_.size() - 1;
  std::size_t place = hash & mask;
  while (slots_[place].merged != noMerge && slots_[place].pair != pair) place = (place + 1) & mask;
  if (slots_[place].merged == noMerge) slots_[place] = {pair, merged};
}

Merger::RankedToken Merger::findSlot(std::uint64_t pair, std::uint64_t hash) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t place = hash & mask;
  while (true) {
    const Slot& slot = slots_[place];
    if (slot.pair == pair || slot.merged == noMerge) return slot.merged;
    place = (place + 1) & mask;
  }
}

std::size_t Merger::bytesToTokens(std::string_view word, TokenId* ids) const {
  std::size_t count = 0;
  bool afterUnknown = false;
  for (std::size_t i = 0; i < word.size(); ++i) {
    const auto byte = static_cast<unsigned char>(word[i]);
    const TokenId id = byteTokens_[byte];
    if (id != noToken) {
      ids[count++] = id;
      afterUnknown = false;
    } else if (!unknown_) {
      throwMissingByte(byte, i);
    } else {
      if (!(afterUnknown && fusesUnknown_)) ids[count++] = *unknown_;
      afterUnknown = true;
    }
  }
  return count;
}

namespace {

// The merges of a short word by the place of their left token, in a form whose minimum is the merge to apply: the rank
// above the place, so that the leftmost of equals is found too.
class ShortMerges {
 public:
  static constexpr std::int32_t none = std::numeric_limits<std::int32_t>::max();
  static constexpr int placeBits = 8;

  explicit ShortMerges(std::size_t places) : blocks_((places + width - 1) / width) {
    std::fill(keys_, keys_ + blocks_ * width, none);
  }
  void set(std::size_t place, std::uint64_t rankedToken) {
    const std::uint64_t key = (rankedToken >> 32) << placeBits | place;
    keys_[place] = static_cast<std::int32_t>(std::min<std::uint64_t>(key, none));
    results_[place] = static_cast<TokenId>(rankedToken);
  }
  void clear(std::size_t place) { keys_[place] = none; }
  TokenId result(std::size_t place) const { return results_[place]; }

  // In blocks of a fixed width, which the compiler turns into vector instructions.
  std::int32_t lowest() const {
    std::int32_t low[width];
    std::copy(keys_, keys_ + width, low);
    for (std::size_t block = 1; block < blocks_; ++block) {
      for (std::size_t i = 0; i < width; ++i) low[i] = std::min(low[i], keys_[block * width + i]);
    }
    for (std::size_t half = width / 2; half > 0; half /= 2) {
      for (std::size_t i = 0; i < half; ++i) low[i] = std::min(low[i], low[i + half]);
    }
    return low[0];
  }

 private:
  static constexpr std::size_t width = 8;
  std::size_t blocks_;
  std::int32_t keys_[Merger::shortWord];
  TokenId results_[Merger::shortWord];
};
static_assert(Merger::shortWord == std::size_t{1} << ShortMerges::placeBits);

}  // namespace

std::size_t Merger::mergeShort(std::string_view word, TokenId* ids) const {
  const std::size_t count = bytesToTokens(word, ids);
  if (count < 2) return count;
  ShortMerges merges(count);
  const auto byteAt = [word](std::size_t i) { return static_cast<std::size_t>(static_cast<unsigned char>(word[i])); };
  for (std::size_t i = 0; i + 1 < count; ++i) {
    merges.set(i, hasAllBytes_ ? byteMerges_[byteAt(i) << 8 | byteAt(i + 1)] : find(ids[i], ids[i + 1]));
  }
  // The places where tokens begin, as a list linked both ways; `count` is behind the last, 0 is before none.
  std::uint16_t next[shortWord];
  std::uint16_t previous[shortWord + 1];
  for (std::size_t i = 0; i < count; ++i) {
    next[i] = static_cast<std::uint16_t>(i + 1);
    previous[i + 1] = static_cast<std::uint16_t>(i);
  }
  for (std::int32_t lowest = merges.lowest(); lowest != ShortMerges::none; lowest = merges.lowest()) {
    const auto left = static_cast<std::size_t>(lowest) % shortWord;
    const std::size_t right = next[left];
    const std::size_t farther = next[right];
    ids[left] = merges.result(left);
    next[left] = static_cast<std::uint16_t>(farther);
    previous[farther] = static_cast<std::uint16_t>(left);
    merges.clear(right);
    merges.set(left, farther == count ? noMerge : find(ids[left], ids[farther]));
    if (left != 0) merges.set(previous[left], find(ids[previous[left]], ids[left]));
  }
  std::size_t kept = 0;
  for (std::size_t place = 0; place != count; place = next[place]) ids[kept++] = ids[place];
  return kept;
}

void Merger::merge(std::string_view word, std::vector<TokenId>& ids) const {
  if (word.size() > shortWord) return mergeLong(word, ids);
  TokenId merged[shortWord];
  const std::size_t count = mergeShort(word, merged);
  ids.insert(ids.end(), merged, merged + count);
}

void Merger::mergeLong(std::string_view word, std::vector<TokenId>& ids) const {
  using Place = std::uint32_t;
  constexpr Place none = std::numeric_limits<Place>::max();
  if (word.size() >= none) {
    throw base::Error(base::ErrorKind::badData, "a word of " + std::to_string(word.size()) +
                                                    " bytes, without anything to split it at, is too long to encode");
  }
  std::vector<TokenId> symbols(word.size());
  symbols.resize(bytesToTokens(word, symbols.data()));
  const auto count = static_cast<Place>(symbols.size());
  std::vector<Place> next(count);
  std::vector<Place> previous(count);
  struct Candidate {
    RankedToken merged;
    Place place;
    bool operator>(const Candidate& other) const {
      return merged != other.merged ? merged > other.merged : place > other.place;
    }
  };
  std::vector<Candidate> first;
  for (Place i = 0; i < count; ++i) {
    previous[i] = i == 0 ? none : i - 1;
    next[i] = i + 1 == count ? none : i + 1;
    if (next[i] == none) break;
    const RankedToken merged = find(symbols[i], symbols[i + 1]);
    if (merged != noMerge) first.push_back({merged, i});
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heap(std::greater<>(), std::move(first));
  const auto offer = [&](Place left) {
    const RankedToken merged = find(symbols[left], symbols[next[left]]);
    if (merged != noMerge) heap.push({merged, left});
  };
  while (!heap.empty()) {
    const Candidate best = heap.top();
    heap.pop();
    // The pair may have changed since it was offered; a merged-away place has no token.
    const Place left = best.place;
    if (symbols[left] == noToken || next[left] == none) continue;
    const Place right = next[left];
    if (find(symbols[left], symbols[right]) != best.merged) continue;
    symbols[left] = static_cast<TokenId>(best.merged);
    symbols[right] = noToken;
    next[left] = next[right];
    if (next[left] != none) {
      previous[next[left]] = left;
      offer(left);
    }
    if (previous[left] != none) offer(previous[left]);
  }
  for (const TokenId id : symbols) {
    if (id != noToken) ids.push_back(id);
  }
}

}  // namespace tandem::tokenizer::detail
