#pragma once
// The bytes of every token, and the token of given bytes, laid out for a lookup per word.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/tokenizer/definition.h"
#include "common/tokenizer/detail/word_hash.h"

namespace tandem::tokenizer::detail {

constexpr TokenId noToken = 0xFFFFFFFF;

class Vocabulary {
 public:
  explicit Vocabulary(const std::vector<Token>& tokens);

  std::int64_t size() const { return static_cast<std::int64_t>(offsets_.size()) - 1; }
  std::string_view bytes(TokenId id) const {
    return {blob_.data() + offsets_[id], static_cast<std::size_t>(offsets_[id + 1] - offsets_[id])};
  }
  // The token that is made of these bytes, literal ones left out; noToken if there is none.
  TokenId find(std::string_view word) const;
  // The token of a single byte, or noToken.
  TokenId ofByte(unsigned char byte) const { return byteTokens_[byte]; }

 private:
  struct Slot {
    std::uint32_t hash = 0;  // the upper half
    TokenId id = noToken;
  };

  std::string blob_;
  std::vector<std::int64_t> offsets_;
  std::vector<Slot> slots_;  // open addressing, a power of two, at most half full
  // Most words that are looked up are no token; a bit for each hash tells most of them without touching slots_.
  std::vector<std::uint64_t> filter_;
  std::array<TokenId, 256> byteTokens_;
};

}  // namespace tandem::tokenizer::detail
