#pragma once

#include <cstdint>
#include <string_view>

namespace tandem::data::detail {

// How many ill-formed sequences a text has: the number of U+FFFD that decoding it would put there (the longest
// beginnings of a well-formed character count as one, by the Unicode Standard, section 3.9, "maximal subparts").
std::int64_t countInvalidUtf8(std::string_view text);

}  // namespace tandem::data::detail
