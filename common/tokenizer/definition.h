#pragma once
// The definition of a byte-level BPE tokenizer as plain data: what a file says, or training found, before the tables
// for encoding are built from it.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/tokenizer/pattern.h"

namespace tandem::tokenizer {

using TokenId = std::uint32_t;

struct Token {
  std::string bytes;
  // Written in a tokenizer.json as it is, not in the alphabet of bytes: added tokens, and names outside that alphabet.
  bool literal = false;
};

// Two tokens that become one. The place in the list of merges is the rank: lower ones are applied first.
struct Merge {
  TokenId left;
  TokenId right;
  TokenId result;
};

// A token found as such in the text before any pattern is applied.
struct AddedToken {
  TokenId id;
  // Special ones are found only if parsing them is asked for; else their text is text. Others are always found.
  bool special = true;
  // Looked for in the normalised text, not in the text as given.
  bool normalized = false;
};

struct Definition {
  Pattern pattern = Pattern::gpt2;
  bool normalizesToC = false;
  // A word that is a token is that token, whatever the merges would make of it (Llama 3, tiktoken).
  bool ignoresMerges = false;
  // Consecutive merges with one result share a rank: the rank is the token's, as tiktoken has it.
  bool ranksByToken = false;
  bool fusesUnknown = false;

  std::vector<Token> tokens;  // by id, without holes
  std::vector<Merge> merges;
  std::vector<AddedToken> addedTokens;
  std::optional<TokenId> unknown;  // for bytes that have no token
  // What a post-processor of the file puts round a text; such tokens are the begin and end of a document.
  std::optional<TokenId> templateBegin;
  std::optional<TokenId> templateEnd;
};

}  // namespace tandem::tokenizer
