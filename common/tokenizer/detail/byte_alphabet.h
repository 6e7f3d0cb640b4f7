#pragma once
// The alphabet in which byte-level vocabularies are written: a printable character for each byte, as GPT-2's
// bytes_to_unicode defines it. Bytes that print in Latin-1 stand for themselves; the others, in order, are U+0100 on.

#include <optional>
#include <string>
#include <string_view>

namespace tandem::tokenizer::detail {

std::string toByteAlphabet(std::string_view bytes);

// The bytes of a text of the alphabet; nothing if another character is in it.
std::optional<std::string> fromByteAlphabet(std::string_view text);

}  // namespace tandem::tokenizer::detail
