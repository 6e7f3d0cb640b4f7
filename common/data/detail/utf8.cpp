#include "common/data/detail/utf8.h"

#include <cstring>

namespace tandem::data::detail {
namespace {

// Length of the character that starts here, or minus the length of an ill-formed sequence (Unicode Standard, table
// 3-7).
int characterLength(const unsigned char* at, const unsigned char* end) {
  const unsigned char lead = *at;
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return -1;
  const int length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  unsigned char low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (int i = 1; i < length; ++i) {
    if (at + i == end || at[i] < low || at[i] > high) return -i;
    low = 0x80;
    high = 0xBF;
  }
  return length;
}

}  // namespace

std::int64_t countInvalidUtf8(std::string_view text) {
  const auto* at = reinterpret_cast<const unsigned char*>(text.data());
  const auto* end = at + text.size();
  std::int64_t invalid = 0;
  while (at < end) {
    std::uint64_t word;
    while (end - at >= 8 && (std::memcpy(&word, at, 8), (word & 0x8080808080808080u) == 0)) at += 8;
    if (at == end) break;
    const int length = characterLength(at, end);
    invalid += length < 0;
    at += length < 0 ? -length : length;
  }
  return invalid;
}

}  // namespace tandem::data::detail
