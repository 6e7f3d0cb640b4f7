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

  // The token that a whole word is without regard to merges, where the tokenizer works so; else noToken.
  TokenId wholeWord(std::string_view word) const { return definition.ignoresMerges ? vocabulary.find(word) : noToken; }

  Definition definition;
  Vocabulary vocabulary;
  Merger merger;
  std::vector<bool> isSpecial;
  // Added tokens to find in the text as given, then in what is between them, normalised.
  AddedTokenFinder addedAsGiven, addedNormalized;
  std::optional<TokenId> beginToken, endToken;
  std::string json;
  std::string hash;
};

}  // namespace tandem::tokenizer::detail
