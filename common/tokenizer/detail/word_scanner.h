#pragma once
// The state machines behind the patterns. Each function takes the place where a word begins and returns where it ends.
//
// The regular expressions are alternatives tried in order, each greedy. What follows was derived from them:
// - A run of white space [b, e): where a newline is in it, `\s*[\r\n]+` ends behind the last one. Else `\s+(?!\S)`
// gives
//   back one character if a non-space follows, so that a last space can lead the next word; a single one stands alone.
// - o200k, with A = upper, title, modifier, other letters and marks and C = lower, modifier, other letters and marks:
//   `A*C+` takes the longest run of A, then the run of C behind it. If no C follows, A* gives characters back until one
//   of them is in C too; as only the last such one can be reached, C+ is that one character. With none, `A+C*` takes
//   the whole run of A. A mark can be the leading `[^\r\n\p{L}\p{N}]?` or part of the run: leading is tried first.
// Words begin where the one before ended, and a rescan is at most one run long, twice: time stays linear.

#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "common/base/error.h"
#include "common/tokenizer/detail/character_class.h"
#include "common/tokenizer/pattern.h"

namespace tandem::tokenizer::detail {

// Length of a contraction at `text`, behind its apostrophe: s, d, m, t, ll, ve, re; 0 for none. With `anyCase` also in
// upper case, and with U+017F for s, whose simple case folding it shares.
template <bool anyCase>
inline int contractionLength(const char* text, const char* end) {
  const auto letter = [&](int index) -> char {
    if (end - text <= index) return 0;
    const char c = text[index];
    return anyCase && c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
  };
  switch (letter(0)) {
    case 's':
    case 'd':
    case 'm':
    case 't':
      return 1;
    case 'l':
      return letter(1) == 'l' ? 2 : 0;
    case 'v':
    case 'r':
      return letter(1) == 'e' ? 2 : 0;
    case '\xC5':
      return anyCase && letter(1) == '\xBF' ? 2 : 0;
    default:
      return 0;
  }
}

// Scans words of one pattern; stateless but for the table.
template <Pattern pattern>
class WordScanner {
 public:
  explicit WordScanner(const CharacterTable& table) : table_(table) {}

  // Where the word ends that begins at `begin`; begin < end, the end of the text.
  const char* wordEnd(const char* begin, const char* end) const {
    const Unit first = readUnit(table_, begin, end);
    const char* second = begin + first.length;
    if constexpr (pattern == Pattern::o200k) {
      if (const char* word = casedWordEnd(begin, first, end)) return word;
    } else {
      if (first.classes & classLetter) return runEnd<classLetter>(second, end);
      if (*begin == '\'') {
        if (const int length = contractionLength<!isGpt2>(second, end)) return second + length;
      }
      if (isGpt2 ? *begin == ' ' : (first.classes & (classNewline | classNumber)) == 0) {
        if (const char* word = lettersAfter(second, end)) return word;
      }
    }
    if (first.classes & classNumber) return numberEnd(second, end);
    if (first.classes & (classSymbol | classMark)) return symbolEnd(second, end);
    if (*begin == ' ' && second != end) {
      const Unit next = readUnit(table_, second, end);
      if (next.classes & (classSymbol | classMark)) return symbolEnd(second + next.length, end);
      if (pattern == Pattern::gpt2 && (next.classes & classNumber)) return runEnd<classNumber>(second, end);
    }
    return whiteEnd(begin, end);
  }

 private:
  static constexpr bool isGpt2 = pattern == Pattern::gpt2 || pattern == Pattern::gpt2Digits;

  // How many of the next eight bytes are ASCII letters before the first that is none; 0 too near the end. All eight are
  // compared at once, so that the end of a word is found without a branch for each letter.
  static int asciiLetters(const char* text, const char* end) {
    if constexpr (std::endian::native != std::endian::little) return 0;
    if (end - text < 8) return 0;
    constexpr std::uint64_t each = 0x0101010101010101;
    std::uint64_t bytes;
    std::memcpy(&bytes, text, 8);
    const std::uint64_t lower = (bytes & each * 0x7F) | each * 0x20;
    // The top bit of each byte: whether it is at least a, and whether it is beyond z.
    const std::uint64_t fromA = lower + each * (0x80 - 'a');
    const std::uint64_t beyondZ = lower + each * (0x80 - 'z' - 1);
    const std::uint64_t others = ~(fromA & ~beyondZ & ~bytes) & each * 0x80;
    return std::countr_zero(others) / 8;
  }

  // The end of the longest run of characters that have one of the classes.
  template <ClassBits classes>
  const char* runEnd(const char* text, const char* end) const {
    while (text != end) {
      if constexpr (classes == classLetter) {
        const int letters = asciiLetters(text, end);
        text += letters;
        if (letters == 8) continue;
      }
      const auto byte = static_cast<unsigned char>(*text);
      if (byte < 128) {
        if ((table_.ascii(byte) & classes) == 0) break;
        ++text;
      } else {
        const Unit unit = readMultibyte(table_, text, end);
        if ((unit.classes & classes) == 0) break;
        text += unit.length;
      }
    }
    return text;
  }

  // The end of the letters at `text`, or null if there are none.
  const char* lettersAfter(const char* text, const char* end) const {
    const char* stop = runEnd<classLetter>(text, end);
    return stop == text ? nullptr : stop;
  }

  // Behind the first number character of a word.
  const char* numberEnd(const char* text, const char* end) const {
    if constexpr (pattern == Pattern::gpt2) return runEnd<classNumber>(text, end);
    if constexpr (pattern == Pattern::qwen2 || pattern == Pattern::gpt2Digits) return text;
    for (int more = 0; more < 2 && text != end; ++more) {
      const Unit unit = readUnit(table_, text, end);
      if ((unit.classes & classNumber) == 0) break;
      text += unit.length;
    }
    return text;
  }

  // Behind the first symbol of a word.
  const char* symbolEnd(const char* text, const char* end) const {
    text = runEnd<classSymbol | classMark>(text, end);
    if constexpr (!isGpt2) {
      while (text != end && (*text == '\r' || *text == '\n' || (pattern == Pattern::o200k && *text == '/'))) ++text;
    }
    return text;
  }

  // At a white-space character that leads no word.
  const char* whiteEnd(const char* begin, const char* end) const {
    const char* behindNewline = nullptr;
    const char* last = begin;  // the last character of the run
    const char* text = begin;
    ClassBits next = 0;  // classes of the character behind the run
    while (text != end) {
      const Unit unit = readUnit(table_, text, end);
      next = unit.classes;
      if ((unit.classes & classWhite) == 0) break;
      last = text;
      text += unit.length;
      if (unit.classes & classNewline) behindNewline = text;
    }
    if constexpr (pattern == Pattern::cl100k) {
      if (text == end) return end;
    }
    if (!isGpt2 && behindNewline != nullptr) return behindNewline;
    // A digit that stands alone has been cut off before the spaces are looked at.
    const bool endsText = text == end || (pattern == Pattern::gpt2Digits && (next & classNumber));
    return endsText || last == begin ? text : last;
  }

  // o200k's first two alternatives at `begin`; null if neither matches.
  const char* casedWordEnd(const char* begin, const Unit& first, const char* end) const {
    if (first.classes & (classLetter | classMark | classSymbol | classSpace)) {
      const bool canLead = (first.classes & classLetter) == 0;
      const char* start = canLead ? begin + first.length : begin;
      const CasedRun run = casedRun(start, end);
      if (run.wordEnd != nullptr) return contractionEnd(run.wordEnd, end);
      if (first.classes & classMark) return contractionEnd(begin + first.length, end);
      if (run.upperEnd != start) return contractionEnd(run.upperEnd, end);
    }
    return nullptr;
  }

  struct CasedRun {
    const char* wordEnd;   // of `A*C+`, or null
    const char* upperEnd;  // of `A*`
  };
  CasedRun casedRun(const char* text, const char* end) const {
    const char* behindBoth = nullptr;  // behind the last character that is in A and in C
    while (text != end) {
      const Unit unit = readUnit(table_, text, end);
      if (unit.classes & classLower) {
        return {runEnd<classLower | classOtherLetter | classMark>(text, end), text};
      }
      if ((unit.classes & (classUpper | classOtherLetter | classMark)) == 0) break;
      text += unit.length;
      if (unit.classes & (classOtherLetter | classMark)) behindBoth = text;
    }
    return {behindBoth, text};
  }

  static const char* contractionEnd(const char* text, const char* end) {
    if (text == end || *text != '\'') return text;
    const int length = contractionLength<true>(text + 1, end);
    return length == 0 ? text : text + 1 + length;
  }

  const CharacterTable& table_;
};

template <Pattern pattern, typename Word>
void forEachWordOf(std::string_view text, Word&& word) {
  const WordScanner<pattern> scanner(CharacterTable::instance());
  const char* end = text.data() + text.size();
  for (const char* begin = text.data(); begin != end;) {
    const char* stop = scanner.wordEnd(begin, end);
    word(begin, stop);
    begin = stop;
  }
}

// Calls word(begin, end) for each word of the text, in order.
template <typename Word>
void forEachWord(Pattern pattern, std::string_view text, Word&& word) {
  switch (pattern) {
    case Pattern::gpt2:
      return forEachWordOf<Pattern::gpt2>(text, word);
    case Pattern::cl100k:
      return forEachWordOf<Pattern::cl100k>(text, word);
    case Pattern::o200k:
      return forEachWordOf<Pattern::o200k>(text, word);
    case Pattern::llama3:
      return forEachWordOf<Pattern::llama3>(text, word);
    case Pattern::qwen2:
      return forEachWordOf<Pattern::qwen2>(text, word);
    case Pattern::gpt2Digits:
      return forEachWordOf<Pattern::gpt2Digits>(text, word);
  }
  TANDEM_ASSERT(false, "a pattern without a scanner");
}

}  // namespace tandem::tokenizer::detail
