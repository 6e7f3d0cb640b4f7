#pragma once
// Everything that a tokenizer computes once from its definition.

#include <optional>
#include <string>
#include <vector>

#include "common/tokenizer/definition.h"
#include "common/tokenizer/detail/added_token_finder.h"
#include "common/tokenizer/detail/merger.h"
#include "common/tokenizer/detail/vocabulary.h"

namespace tandem::tokenizer::detail {

struct Tables {
  explicit Tables(Definition given);

  // The one token that a whole word becomes without looking further, or noToken.
  TokenId wholeWord(std::string_view word, std::uint64_t wordsHash) const {
    const TokenId id = vocabulary.find(word, wordsHash);
    return id != noToken && isReached[id] ? id : noToken;
  }

  Definition definition;
  Vocabulary vocabulary;
  Merger merger;
  // By id: whether the merges make this token of its own bytes, or merges are ignored for whole words.
  std::vector<bool> isReached;
  std::vector<bool> isSpecial;
  // Added tokens to find: always, or with special ones; in the text as given, or normalised.
  AddedTokenFinder always, withSpecial, alwaysNormalized, withSpecialNormalized;
  std::optional<TokenId> beginToken, endToken;
  std::string json;
  std::string hash;
};

}  // namespace tandem::tokenizer::detail
