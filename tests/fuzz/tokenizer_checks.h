#pragma once
// What must hold of every tokenizer that a file was accepted as.

#include <string_view>

#include "common/tokenizer/tokenizer.h"

namespace tandem::fuzz {

// Its file, written and read again, is the same; and text, the bytes of the input among it, comes back as it was.
void checkTokenizer(const tokenizer::Tokenizer& tokenizer, std::string_view input);

}  // namespace tandem::fuzz
