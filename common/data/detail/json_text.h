#pragma once
// The text of one JSON Lines record, without building the record: one pass that checks the whole line against RFC 8259
// and keeps a single string. No recursion, so nesting can't exhaust the stack.

#include <string>
#include <string_view>

namespace tandem::data::detail {

// Puts the string under `key` of the object that the line is into `text`; of several equal keys the last counts.
// Returns what is wrong with the line, or null when nothing is. Bytes that are no UTF-8 are kept as they are; an
// escaped surrogate without its partner is wrong, since there is no text that it stands for.
const char* extractText(std::string_view line, std::string_view key, std::string& text);

}  // namespace tandem::data::detail
