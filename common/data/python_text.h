#pragma once
// Changes of text that task definitions make in Python, done as Python does them.

#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::data {

// Without white space (str.isspace) at both ends.
std::string_view stripped(std::string_view text);
// The same at the end alone.
std::string_view rightStripped(std::string_view text);
// The first character in title case, the others in lower case.
std::string capitalised(std::string_view text);
// In lower case.
std::string lowered(std::string_view text);
// Characters, which are not always bytes (len).
std::int64_t countCharacters(std::string_view text);
// Every occurrence, from the left, without looking at what was put in.
std::string replaced(std::string_view text, std::string_view what, std::string_view by);

}  // namespace tandem::data
