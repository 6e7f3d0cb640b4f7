#include "common/tokenizer/detail/character_class.h"

#include <utf8proc.h>

#include <map>

namespace tandem::tokenizer::detail {
namespace {

// The White_Space property of PropList.txt, which is what \s means to the patterns' regex engines.
bool isWhiteSpace(std::uint32_t point) {
  return (point >= 0x09 && point <= 0x0D) || point == 0x20 || point == 0x85 || point == 0xA0 || point == 0x1680 ||
         (point >= 0x2000 && point <= 0x200A) || point == 0x2028 || point == 0x2029 || point == 0x202F ||
         point == 0x205F || point == 0x3000;
}

ClassBits classify(std::uint32_t point) {
  if (point == '\n' || point == '\r') return classNewline;
  if (isWhiteSpace(point)) return classSpace;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(point))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT:
      return classUpper;
    case UTF8PROC_CATEGORY_LL:
      return classLower;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return classOtherLetter;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return classMark;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return classNumber;
    default:
      return classSymbol;
  }
}

}  // namespace

CharacterTable::CharacterTable() {
  std::map<std::array<ClassBits, 256>, std::uint16_t> known;
  for (std::uint32_t block = 0; block < blockOf_.size(); ++block) {
    std::array<ClassBits, 256> classes{};
    for (std::uint32_t low = 0; low < 256; ++low) classes[low] = classify((block << 8) | low);
    const auto [place, isNew] = known.emplace(classes, static_cast<std::uint16_t>(known.size()));
    if (isNew) blocks_.insert(blocks_.end(), classes.begin(), classes.end());
    blockOf_[block] = place->second;
  }
  for (std::uint32_t byte = 0; byte < 128; ++byte) ascii_[byte] = of(byte);
}

const CharacterTable& CharacterTable::instance() {
  static const CharacterTable table;
  return table;
}

}  // namespace tandem::tokenizer::detail
