#include "common/data/python_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace tandem::data {
namespace {

struct Character {
  std::int32_t code = -1;  // -1: the byte begins no well-formed character
  std::size_t bytes = 1;
};

Character firstOf(std::string_view text) {
  Character character;
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  const auto length = utf8proc_iterate(bytes, static_cast<utf8proc_ssize_t>(text.size()), &character.code);
  if (length > 0) character.bytes = static_cast<std::size_t>(length);
  return character;
}

Character lastOf(std::string_view text) {
  std::size_t begin = text.size() - 1;
  while (begin > 0 && text.size() - begin < 4 && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) --begin;
  const Character character = firstOf(text.substr(begin));
  return character.bytes == text.size() - begin ? character : Character{};
}

bool isSpace(std::int32_t code) {
  constexpr std::array<std::int32_t, 8> others = {0x85, 0xa0, 0x1680, 0x2028, 0x2029, 0x202f, 0x205f, 0x3000};
  if ((code >= 9 && code <= 13) || (code >= 28 && code <= 32) || (code >= 0x2000 && code <= 0x200a)) return true;
  for (const std::int32_t other : others) {
    if (code == other) return true;
  }
  return false;
}

// Bytes that are no characters stay as they are.
std::string mapped(std::string_view text, utf8proc_int32_t (*map)(utf8proc_int32_t)) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const Character character = firstOf(text.substr(at));
    if (character.code < 0) {
      result += text[at];
    } else {
      std::array<utf8proc_uint8_t, 4> bytes{};
      const auto count = utf8proc_encode_char(map(character.code), bytes.data());
      result.append(reinterpret_cast<const char*>(bytes.data()), static_cast<std::size_t>(count));
    }
    at += character.bytes;
  }
  return result;
}

}  // namespace

std::string_view stripped(std::string_view text) {
  while (!text.empty() && isSpace(firstOf(text).code)) text.remove_prefix(firstOf(text).bytes);
  return rightStripped(text);
}

std::string_view rightStripped(std::string_view text) {
  while (!text.empty() && isSpace(lastOf(text).code)) text.remove_suffix(lastOf(text).bytes);
  return text;
}

std::int64_t countCharacters(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

std::string capitalised(std::string_view text) {
  const std::size_t first = text.empty() ? 0 : firstOf(text).bytes;
  return mapped(text.substr(0, first), utf8proc_totitle) + lowered(text.substr(first));
}

std::string lowered(std::string_view text) { return mapped(text, utf8proc_tolower); }

std::string replaced(std::string_view text, std::string_view what, std::string_view by) {
  std::string result;
  for (std::size_t at = 0;;) {
    const std::size_t found = text.find(what, at);
    result += text.substr(at, found - at);
    if (found == std::string_view::npos) return result;
    result += by;
    at = found + what.size();
  }
}

}  // namespace tandem::data
