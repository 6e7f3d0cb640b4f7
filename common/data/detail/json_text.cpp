#include "common/data/detail/json_text.h"

#include <cstdint>
#include <cstring>

namespace tandem::data::detail {
namespace {

constexpr std::size_t deepestNesting = 512;

class Scanner {
 public:
  explicit Scanner(std::string_view line) : at_(line.data()), end_(line.data() + line.size()) {}

  const char* extract(std::string_view key, std::string& text);

 private:
  void skipBlanks() {
    while (at_ < end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\r' || *at_ == '\n')) ++at_;
  }
  bool take(char expected) {
    if (at_ == end_ || *at_ != expected) return false;
    ++at_;
    return true;
  }
  bool isDigit() const { return at_ < end_ && *at_ >= '0' && *at_ <= '9'; }
  bool fail(const char* why) {
    why_ = why;
    return false;
  }

  bool readString(std::string* value);
  bool readEscape(std::string* value);
  bool readHex(std::uint32_t& value);
  bool skipValue();
  bool skipScalar();
  bool skipNumber();
  bool skipWord(std::string_view word);
  bool readName(std::string* name);
  bool beginValue(std::string& nesting, bool& complete);
  bool endValues(std::string& nesting);
  enum class Found { nothing, string, other };
  bool readMember(std::string_view key, std::string& text, Found& found);

  const char* at_;
  const char* end_;
  const char* why_ = nullptr;
  std::string name_;
};

// The next byte that ends a plain run of a string: a quote, a backslash or a control character. Eight bytes at a time,
// by the well-known test for a zero byte in a word.
const char* endOfPlainRun(const char* at, const char* end) {
  constexpr std::uint64_t ones = 0x0101010101010101u, tops = 0x8080808080808080u;
  while (end - at >= 8) {
    std::uint64_t word;
    std::memcpy(&word, at, 8);
    const std::uint64_t quote = word ^ (ones * '"'), backslash = word ^ (ones * '\\');
    const std::uint64_t hit =
        ((quote - ones) & ~quote) | ((backslash - ones) & ~backslash) | ((word - ones * 0x20) & ~word);
    if ((hit & tops) != 0) break;
    at += 8;
  }
  while (at < end && *at != '"' && *at != '\\' && static_cast<unsigned char>(*at) >= 0x20) ++at;
  return at;
}

void appendUtf8(std::string& text, std::uint32_t point) {
  const auto push = [&](std::uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (point < 0x80) {
    push(point);
  } else if (point < 0x800) {
    push(0xC0 | point >> 6);
    push(0x80 | (point & 0x3F));
  } else if (point < 0x10000) {
    push(0xE0 | point >> 12);
    push(0x80 | (point >> 6 & 0x3F));
    push(0x80 | (point & 0x3F));
  } else {
    push(0xF0 | point >> 18);
    push(0x80 | (point >> 12 & 0x3F));
    push(0x80 | (point >> 6 & 0x3F));
    push(0x80 | (point & 0x3F));
  }
}

// After the opening quote. Without a target the string is only checked.
bool Scanner::readString(std::string* value) {
  if (value != nullptr) value->clear();
  for (;;) {
    const char* runEnd = endOfPlainRun(at_, end_);
    if (value != nullptr) value->append(at_, runEnd);
    at_ = runEnd;
    if (at_ == end_) return fail("a string is not closed");
    const char stop = *at_++;
    if (stop == '"') return true;
    if (stop != '\\') return fail("a control character stands unescaped in a string");
    if (!readEscape(value)) return false;
  }
}

bool Scanner::readHex(std::uint32_t& value) {
  if (end_ - at_ < 4) return false;
  value = 0;
  for (int i = 0; i < 4; ++i) {
    const char c = *at_++;
    std::uint32_t digit = 0;
    if (c >= '0' && c <= '9') {
      digit = static_cast<std::uint32_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      digit = static_cast<std::uint32_t>(c - 'a' + 10);
    } else if (c >= 'A' && c <= 'F') {
      digit = static_cast<std::uint32_t>(c - 'A' + 10);
    } else {
      return false;
    }
    value = value << 4 | digit;
  }
  return true;
}

// After the backslash.
bool Scanner::readEscape(std::string* value) {
  constexpr std::string_view letters = "\"\\/bfnrt", meanings = "\"\\/\b\f\n\r\t";
  const char* invalid = "a string has an invalid escape";
  if (at_ == end_) return fail("a string is not closed");
  const char kind = *at_++;
  if (const std::size_t which = letters.find(kind); which != std::string_view::npos) {
    if (value != nullptr) value->push_back(meanings[which]);
    return true;
  }
  std::uint32_t point = 0;
  if (kind != 'u' || !readHex(point)) return fail(invalid);
  if (point >= 0xD800 && point < 0xE000) {
    std::uint32_t low = 0;
    const bool paired = point < 0xDC00 && take('\\') && take('u') && readHex(low) && low >= 0xDC00 && low < 0xE000;
    if (!paired) return fail("a string escapes half of a surrogate pair");
    point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00);
  }
  if (value != nullptr) appendUtf8(*value, point);
  return true;
}

bool Scanner::skipWord(std::string_view word) {
  if (std::string_view(at_, static_cast<std::size_t>(end_ - at_)).starts_with(word)) {
    at_ += word.size();
    return true;
  }
  return fail("a value is no JSON");
}

bool Scanner::skipNumber() {
  const char* invalid = "a number is malformed";
  take('-');
  if (!take('0')) {
    if (!isDigit()) return fail(invalid);
    while (isDigit()) ++at_;
  }
  if (take('.')) {
    if (!isDigit()) return fail(invalid);
    while (isDigit()) ++at_;
  }
  if (take('e') || take('E')) {
    if (!take('+')) take('-');
    if (!isDigit()) return fail(invalid);
    while (isDigit()) ++at_;
  }
  return true;
}

bool Scanner::skipScalar() {
  if (at_ == end_) return fail("the record breaks off");
  switch (*at_) {
    case '"':
      ++at_;
      return readString(nullptr);
    case 't':
      return skipWord("true");
    case 'f':
      return skipWord("false");
    case 'n':
      return skipWord("null");
    default:
      break;
  }
  if (*at_ == '-' || isDigit()) return skipNumber();
  return fail("a value is no JSON");
}

// The name of a member and its colon, before which blanks have been skipped.
bool Scanner::readName(std::string* name) {
  if (!take('"')) return fail("a name in quotes is missing");
  if (!readString(name)) return false;
  skipBlanks();
  return take(':') || fail("a colon is missing behind a name");
}

// A scalar, an empty container, or the opening of a container with something in it (then `complete` is false).
bool Scanner::beginValue(std::string& nesting, bool& complete) {
  skipBlanks();
  complete = true;
  const bool isObject = at_ < end_ && *at_ == '{';
  if (!isObject && !(at_ < end_ && *at_ == '[')) return skipScalar();
  if (nesting.size() == deepestNesting) return fail("the record is nested too deeply");
  ++at_;
  skipBlanks();
  if (take(isObject ? '}' : ']')) return true;
  complete = false;
  nesting.push_back(isObject ? '{' : '[');
  return !isObject || readName(nullptr);
}

// Behind a value: the brackets that close, then the comma, and the name, before the next value.
bool Scanner::endValues(std::string& nesting) {
  while (!nesting.empty()) {
    const bool isObject = nesting.back() == '{';
    skipBlanks();
    if (take(',')) {
      skipBlanks();
      return !isObject || readName(nullptr);
    }
    if (!take(isObject ? '}' : ']')) return fail("a comma or a closing bracket is missing");
    nesting.pop_back();
  }
  return true;
}

// Any value. The containers open at a moment are the characters of `nesting`.
bool Scanner::skipValue() {
  std::string nesting;
  do {
    bool complete = false;
    if (!beginValue(nesting, complete)) return false;
    if (complete && !endValues(nesting)) return false;
  } while (!nesting.empty());
  return true;
}

// One member of the record itself. `found` tells of the last one under the key whether it is a string.
bool Scanner::readMember(std::string_view key, std::string& text, Found& found) {
  skipBlanks();
  if (!readName(&name_)) return false;
  if (name_ != key) return skipValue();
  skipBlanks();
  found = take('"') ? Found::string : Found::other;
  return found == Found::string ? readString(&text) : skipValue();
}

const char* Scanner::extract(std::string_view key, std::string& text) {
  skipBlanks();
  if (!take('{')) return "the line is no JSON object";
  skipBlanks();
  Found found = Found::nothing;
  if (!take('}')) {
    do {
      if (!readMember(key, text, found)) return why_;
      skipBlanks();
    } while (take(','));
    if (!take('}')) return "a comma or the closing bracket is missing";
  }
  skipBlanks();
  if (at_ != end_) return "something stands behind the object";
  if (found == Found::nothing) return "the object has no such key as the text is under";
  if (found == Found::other) return "what is under the key of the text is no string";
  return nullptr;
}

}  // namespace

const char* extractText(std::string_view line, std::string_view key, std::string& text) {
  return Scanner(line).extract(key, text);
}

}  // namespace tandem::data::detail
