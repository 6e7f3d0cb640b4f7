#include "common/tokenizer/detail/byte_alphabet.h"

#include <array>

#include "common/tokenizer/detail/character_class.h"

namespace tandem::tokenizer::detail {
namespace {

constexpr std::uint32_t firstSubstitute = 0x100;
constexpr std::uint32_t substitutes = 68;

struct Alphabet {
  std::array<std::uint32_t, 256> ofByte{};
  std::array<int, firstSubstitute + substitutes> byteOf{};

  Alphabet() {
    byteOf.fill(-1);
    std::uint32_t next = firstSubstitute;
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
      const bool prints = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      ofByte[byte] = prints ? byte : next++;
      byteOf[ofByte[byte]] = static_cast<int>(byte);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet made;
  return made;
}

}  // namespace

std::string toByteAlphabet(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    const std::uint32_t point = alphabet().ofByte[static_cast<unsigned char>(c)];
    if (point < 0x80) {
      text += static_cast<char>(point);
    } else {
      text += static_cast<char>(0xC0 | (point >> 6));
      text += static_cast<char>(0x80 | (point & 0x3F));
    }
  }
  return text;
}

std::optional<std::string> fromByteAlphabet(std::string_view text) {
  const CharacterTable& table = CharacterTable::instance();
  std::string bytes;
  const char* end = text.data() + text.size();
  for (const char* place = text.data(); place != end;) {
    const Unit unit = readUnit(table, place, end);
    if (unit.codePoint >= alphabet().byteOf.size() || alphabet().byteOf[unit.codePoint] < 0) return std::nullopt;
    bytes += static_cast<char>(alphabet().byteOf[unit.codePoint]);
    place += unit.length;
  }
  return bytes;
}

}  // namespace tandem::tokenizer::detail
