#pragma once
// Finds added tokens in a text: the leftmost, and at one place the longest.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/tokenizer/definition.h"

namespace tandem::tokenizer::detail {

class AddedTokenFinder {
 public:
  // Contents must not be empty.
  void add(std::string content, TokenId id, bool special);
  // Whether there is anything to find, with special tokens or without.
  bool empty(bool withSpecial) const { return withSpecial ? entries_.empty() : !hasOrdinary_; }

  struct Match {
    std::size_t begin = 0;
    std::size_t size = 0;  // 0 if nothing was found
    TokenId id = 0;
    bool special = false;
  };
  // The first match at or behind `from`.
  Match find(std::string_view text, std::size_t from) const;

 private:
  struct Entry {
    std::string content;
    TokenId id;
    bool special;
  };
  // The longest entry that `text` starts with, or null.
  const Entry* longestAt(std::string_view text) const;

  std::vector<Entry> entries_;  // sorted by content
  std::array<bool, 256> starts_{};
  bool hasOrdinary_ = false;
};

}  // namespace tandem::tokenizer::detail
