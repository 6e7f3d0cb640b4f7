#pragma once
// A hash of a word for tables inside one process: inlined, a multiplication per eight bytes.

#include <cstdint>
#include <cstring>

namespace tandem::tokenizer::detail {

inline std::uint64_t mixBits(std::uint64_t a, std::uint64_t b) {
  // The two halves of a 128-bit product, folded: every bit of the result depends on every bit of the factors.
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

inline std::uint64_t loadBytes(const char* text, std::size_t count) {
  std::uint64_t value = 0;
  if (count >= 8) {
    std::memcpy(&value, text, 8);
  } else if (count >= 4) {
    std::uint32_t low = 0;
    std::uint32_t high = 0;
    std::memcpy(&low, text, 4);
    std::memcpy(&high, text + count - 4, 4);
    value = low | (static_cast<std::uint64_t>(high) << 32);
  } else if (count > 0) {
    const auto at = [text](std::size_t i) { return static_cast<std::uint64_t>(static_cast<unsigned char>(text[i])); };
    value = at(0) | (at(count / 2) << 8) | (at(count - 1) << 16);
  }
  return value;
}

inline std::uint64_t wordHash(const char* text, std::size_t size) {
  constexpr std::uint64_t first = 0x9E3779B97F4A7C15;
  constexpr std::uint64_t second = 0xD6E8FEB86659FD93;
  std::uint64_t hash = size * first + 1;
  while (size > 16) {
    hash = mixBits(hash ^ loadBytes(text, 8), second);
    text += 8;
    size -= 8;
  }
  const std::size_t low = size < 8 ? size : 8;
  return mixBits(hash ^ loadBytes(text, low), second ^ loadBytes(text + low, size - low)) * first;
}

}  // namespace tandem::tokenizer::detail
