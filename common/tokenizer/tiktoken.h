#pragma once
// .tiktoken files: a line a token, its bytes in base64 and its rank, which is its id and its priority in merging.
//
// There are no merges in the file: a pair may merge if its bytes joined are a token, and the lowest such rank comes
// first. So every split of a token into two tokens becomes a merge that shares the token's rank, and no token becomes
// unreachable. A whole word that is a token is that token.

#include <string>
#include <string_view>
#include <vector>

#include "common/tokenizer/tokenizer.h"

namespace tandem::tokenizer {

// The file carries neither pattern nor special tokens; the special ones get the ids behind the last rank, in order.
// Throws Error of kind badData with `origin` and the line for a malformed line, a token or a rank that is there twice,
// and a rank that no line has.
Tokenizer fromTiktoken(std::string_view text, Pattern pattern, const std::string& origin,
                       const std::vector<std::string>& specialTokens = {"<|endoftext|>"});

}  // namespace tandem::tokenizer
