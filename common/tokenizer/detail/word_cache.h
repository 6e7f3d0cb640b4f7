#pragma once
// The tokens of words seen before, in two tables of cache-line sized sets.
//
// Short words (up to 15 bytes and 4 tokens) are two to a 64-byte line: the first place of a line keeps the word that
// was hit last, the second takes what is new, so that words seen once do not drive out those seen often. Middle words
// (up to 32 bytes and 7 tokens) have a line each. Longer ones seldom come twice and are not kept.

#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "common/tokenizer/definition.h"
#include "common/tokenizer/detail/vocabulary.h"
#include "common/tokenizer/detail/word_hash.h"

namespace tandem::tokenizer::detail {

class WordCache {
 public:
  // Numbers of lines, powers of two.
  WordCache(std::size_t shortLines, std::size_t middleLines) : short_(shortLines), middle_(middleLines) {}

  static constexpr std::size_t shortBytes = 15;
  static constexpr std::size_t shortTokens = 4;
  static constexpr std::size_t middleBytes = 32;
  static constexpr std::size_t middleTokens = 7;

  struct ShortKey {
    std::uint64_t low = 0;
    std::uint64_t high = 0;  // the size in its top byte; 0 for an empty place
    bool operator==(const ShortKey&) const = default;
  };
  struct ShortEntry {
    ShortKey key;
    TokenId tokens[shortTokens] = {noToken, noToken, noToken, noToken};
  };
  struct alignas(64) ShortLine {
    ShortEntry recent;
    ShortEntry latest;
  };
  struct alignas(64) MiddleEntry {
    char bytes[middleBytes] = {};
    TokenId tokens[middleTokens] = {};
    std::uint8_t size = 0;
    std::uint8_t count = 0;
  };

  // A word of at most shortBytes; `readable` is how many bytes may be read from its beginning.
  static ShortKey shortKey(const char* word, std::size_t size, std::size_t readable) {
    ShortKey key;
    if (readable >= 16) {
      std::memcpy(&key.low, word, 8);
      std::memcpy(&key.high, word + 8, 8);
      if (size <= 8) {
        key.low &= ~std::uint64_t{0} >> (64 - 8 * size);
        key.high = 0;
      } else {
        key.high &= ~std::uint64_t{0} >> (128 - 8 * size);
      }
    } else {
      std::memcpy(&key.low, word, size < 8 ? size : 8);
      if (size > 8) std::memcpy(&key.high, word + 8, size - 8);
    }
    key.high |= static_cast<std::uint64_t>(size) << 56;
    return key;
  }
  ShortLine& shortLine(const ShortKey& key) {
    return short_[mixBits(key.low ^ 0x9E3779B97F4A7C15, key.high ^ 0xD6E8FEB86659FD93) & (short_.size() - 1)];
  }
  MiddleEntry& middleEntry(std::uint64_t hash) { return middle_[hash & (middle_.size() - 1)]; }

 private:
  std::vector<ShortLine> short_;
  std::vector<MiddleEntry> middle_;
};

}  // namespace tandem::tokenizer::detail
