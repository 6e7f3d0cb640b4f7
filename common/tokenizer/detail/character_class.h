#pragma once
// What the pre-token patterns ask about a character, as bits, in a table built once from utf8proc's categories.
//
// Ill-formed UTF-8 is read as units of one byte with the class of a symbol: neither letter, mark, number nor space.

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

namespace tandem::tokenizer::detail {

using ClassBits = std::uint8_t;
constexpr ClassBits classUpper = 1;        // Lu, Lt
constexpr ClassBits classLower = 2;        // Ll
constexpr ClassBits classOtherLetter = 4;  // Lm, Lo
constexpr ClassBits classMark = 8;         // Mn, Mc, Me
constexpr ClassBits classNumber = 16;      // Nd, Nl, No
constexpr ClassBits classNewline = 32;     // \r and \n, which are white space too
constexpr ClassBits classSpace = 64;       // the other White_Space characters
constexpr ClassBits classSymbol = 128;     // everything else, unassigned and ill-formed included

constexpr ClassBits classLetter = classUpper | classLower | classOtherLetter;
constexpr ClassBits classWhite = classNewline | classSpace;

// Classes by code point: blocks of 256 code points, equal blocks stored once.
class CharacterTable {
 public:
  static const CharacterTable& instance();

  ClassBits ascii(unsigned char byte) const { return ascii_[byte]; }
  ClassBits of(std::uint32_t codePoint) const {
    return blocks_[(static_cast<std::size_t>(blockOf_[codePoint >> 8]) << 8) | (codePoint & 255)];
  }

 private:
  CharacterTable();

  std::array<ClassBits, 256> ascii_{};  // of a byte below 128; others have no bit
  std::array<std::uint16_t, 0x1100> blockOf_{};
  std::vector<ClassBits> blocks_;
};

// A character, or one byte that belongs to none.
struct Unit {
  ClassBits classes;
  int length;               // in bytes
  std::uint32_t codePoint;  // 0xFFFFFFFF for an ill-formed byte
};
constexpr std::uint32_t noCodePoint = 0xFFFFFFFF;

// Reads the unit at `text`, text < end, whose first byte is 128 or more.
inline Unit readMultibyte(const CharacterTable& table, const char* text, const char* end) {
  const auto byte = [text](int index) { return static_cast<std::uint32_t>(static_cast<unsigned char>(text[index])); };
  const auto follows = [&](int index) { return (byte(index) & 0xC0) == 0x80; };
  const std::uint32_t lead = byte(0);
  const std::ptrdiff_t left = end - text;
  if (lead >= 0xC2 && lead < 0xE0) {
    if (left >= 2 && follows(1)) {
      const std::uint32_t point = ((lead & 0x1F) << 6) | (byte(1) & 0x3F);
      return {table.of(point), 2, point};
    }
  } else if ((lead & 0xF0) == 0xE0) {
    if (left >= 3 && follows(1) && follows(2)) {
      const std::uint32_t point = ((lead & 0x0F) << 12) | ((byte(1) & 0x3F) << 6) | (byte(2) & 0x3F);
      if (point >= 0x800 && (point & 0xFFFFF800) != 0xD800) return {table.of(point), 3, point};
    }
  } else if (lead >= 0xF0 && lead < 0xF5) {
    if (left >= 4 && follows(1) && follows(2) && follows(3)) {
      const std::uint32_t point =
          ((lead & 0x07) << 18) | ((byte(1) & 0x3F) << 12) | ((byte(2) & 0x3F) << 6) | (byte(3) & 0x3F);
      if (point >= 0x10000 && point <= 0x10FFFF) return {table.of(point), 4, point};
    }
  }
  return {classSymbol, 1, noCodePoint};
}

inline Unit readUnit(const CharacterTable& table, const char* text, const char* end) {
  const auto byte = static_cast<unsigned char>(*text);
  if (byte < 128) return {table.ascii(byte), 1, byte};
  return readMultibyte(table, text, end);
}

}  // namespace tandem::tokenizer::detail
