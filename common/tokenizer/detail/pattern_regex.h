#pragma once
// The regular expressions by which tokenizer.json files name the patterns.

#include <optional>
#include <string>
#include <string_view>

#include "common/tokenizer/pattern.h"

namespace tandem::tokenizer::detail {

// The pattern that cuts as this regular expression does, among the spellings that published tokenizers use.
std::optional<Pattern> patternOfRegex(std::string_view regex);

// A regular expression, in the syntax of Hugging Face tokenizers' engine, that cuts as the pattern does. Not for
// gpt2Digits, which is two steps there.
std::string regexOf(Pattern pattern);

}  // namespace tandem::tokenizer::detail
