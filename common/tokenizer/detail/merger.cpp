#include "common/tokenizer/detail/merger.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <queue>
#include <string>

#include "common/base/error.h"

namespace tandem::tokenizer::detail {
namespace {

std::uint64_t pairKey(TokenId left, TokenId right) { return (static_cast<std::uint64_t>(left) << 32) | right; }

std::size_t pairHash(std::uint64_t pair) { return static_cast<std::size_t>(mixBits(pair, 0x9E3779B97F4A7C15)); }

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
}

void Merger::insert(TokenId left, TokenId right, RankedToken merged) {
  const std::uint64_t pair = pairKey(left, right);
  const std::size_t mask = slots_.size() - 1;
  std::size_t place = pairHash(pair) & mask;
  while (slots_[place].merged != noMerge && slots_[place].pair != pair) place = (place + 1) & mask;
  if (slots_[place].merged == noMerge) slots_[place] = {pair, merged};
}

Merger::RankedToken Merger::find(TokenId left, TokenId right) const {
  const std::uint64_t pair = pairKey(left, right);
  const std::size_t mask = slots_.size() - 1;
  std::size_t place = pairHash(pair) & mask;
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

std::size_t Merger::mergeShort(std::string_view word, TokenId* ids) const {
  std::size_t count = bytesToTokens(word, ids);
  RankedToken merges[shortWord + 1];  // of ids[i] and ids[i + 1]
  for (std::size_t i = 0; i + 1 < count; ++i) merges[i] = find(ids[i], ids[i + 1]);
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i) {
      if (merges[i] < merges[best]) best = i;
    }
    if (merges[best] == noMerge) break;
    ids[best] = static_cast<TokenId>(merges[best]);
    --count;
    for (std::size_t i = best + 1; i < count; ++i) ids[i] = ids[i + 1];
    for (std::size_t i = best + 1; i + 1 < count; ++i) merges[i] = merges[i + 1];
    if (best > 0) merges[best - 1] = find(ids[best - 1], ids[best]);
    if (best + 1 < count) merges[best] = find(ids[best], ids[best + 1]);
  }
  return count;
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
