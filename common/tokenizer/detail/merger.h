#pragma once
// Byte-pair merging of one word: again and again the adjacent pair of lowest rank, the leftmost among equals.

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "common/tokenizer/definition.h"
#include "common/tokenizer/detail/vocabulary.h"

namespace tandem::tokenizer::detail {

class Merger {
 public:
  // Throws Error of kind badData if there are more than 2^23 ranks.
  Merger(const Definition& definition, const Vocabulary& vocabulary);

  // Words up to this many bytes are merged on the stack, scanning for the lowest rank; longer ones with a heap, in
  // time n log n.
  static constexpr std::size_t shortWord = 256;

  // Appends the tokens of a word. Throws Error of kind badData, naming the byte, if a byte has no token and the
  // vocabulary has no unknown token.
  void merge(std::string_view word, std::vector<TokenId>& ids) const;
  // The same for a word of up to shortWord bytes; ids has room for as many. Returns how many tokens there are.
  std::size_t mergeShort(std::string_view word, TokenId* ids) const;

 private:
  // A rank in the upper half and the merged token in the lower: the smallest is the merge to apply.
  using RankedToken = std::uint64_t;
  static constexpr RankedToken noMerge = ~RankedToken{0};
  struct Slot {
    std::uint64_t pair = ~std::uint64_t{0};
    RankedToken merged = noMerge;
  };

  RankedToken find(TokenId left, TokenId right) const {
    const std::uint64_t pair = pairKey(left, right);
    const std::uint64_t hash = pairHash(pair);
    if ((filter_[(hash >> 38) & (filter_.size() - 1)] >> (hash >> 32 & 63) & 1) == 0) return noMerge;
    return findSlot(pair, hash);
  }
  RankedToken findSlot(std::uint64_t pair, std::uint64_t hash) const;
  static std::uint64_t pairKey(TokenId left, TokenId right) { return static_cast<std::uint64_t>(left) << 32 | right; }
  static std::uint64_t pairHash(std::uint64_t pair) { return mixBits(pair, 0x9E3779B97F4A7C15); }
  std::size_t bytesToTokens(std::string_view word, TokenId* ids) const;
  void mergeLong(std::string_view word, std::vector<TokenId>& ids) const;
  void insert(TokenId left, TokenId right, RankedToken merged);

  std::vector<Slot> slots_;  // open addressing, a power of two, at most half full
  // Most pairs that are looked up merge to nothing; a bit for each hash tells most of them without touching slots_.
  std::vector<std::uint64_t> filter_;
  std::vector<RankedToken> byteMerges_;  // of two bytes, the left one above the right one
  bool hasAllBytes_;
  std::array<TokenId, 256> byteTokens_;
  std::optional<TokenId> unknown_;
  bool fusesUnknown_;
};

}  // namespace tandem::tokenizer::detail
