#pragma once
// Unicode normalisation form C, as the normaliser of Qwen2's tokenizer applies it before anything else.

#include <string>
#include <string_view>

namespace tandem::tokenizer::detail {

// Whether the text is surely in form C already, found without normalising: it has no character from U+0300 on.
bool isPlainlyNormal(std::string_view text);

// The text in form C. Bytes that are no well-formed UTF-8 stay where they are and part what is before and behind them.
std::string normalizeToC(std::string_view text);

}  // namespace tandem::tokenizer::detail
