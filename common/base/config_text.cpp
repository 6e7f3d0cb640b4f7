#include "common/base/config_text.h"

#include <algorithm>

#include "common/base/error.h"

namespace tandem::base {
namespace {

bool isNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

class Parser {
 public:
  Parser(std::string_view text, const std::string& source) : text_(text), source_(source) {
    if (text_.starts_with("\xef\xbb\xbf")) place_ = 3;  // a byte order mark, as some editors write
  }

  std::vector<ConfigEntry> run() {
    std::vector<ConfigEntry> entries;
    for (skipToEntry(); !atEnd(); skipToEntry()) {
      ConfigEntry entry = readEntry();
      const auto earlier = std::ranges::find(entries, entry.name, &ConfigEntry::name);
      if (earlier != entries.end()) {
        fail("'" + entry.name + "' is set a second time, after line " + std::to_string(earlier->line), entry.line);
      }
      entries.push_back(std::move(entry));
    }
    return entries;
  }

 private:
  bool atEnd() const { return place_ == text_.size(); }
  char next() const { return atEnd() ? '\n' : text_[place_]; }

  [[noreturn]] void fail(const std::string& problem, int line) const {
    throw Error(ErrorKind::usage,
                "the configuration file '" + source_ + "', line " + std::to_string(line) + ": " + problem);
  }
  [[noreturn]] void fail(const std::string& problem) const { fail(problem, line_); }

  void advance() {
    if (text_[place_] == '\n') ++line_;
    ++place_;
  }
  void skipBlanks() {
    while (!atEnd() && (next() == ' ' || next() == '\t' || next() == '\r')) advance();
  }
  void skipComment() {
    if (next() != '#') return;
    while (!atEnd() && next() != '\n') advance();
  }
  // Over blanks, comments and the ends of lines.
  void skipToEntry() {
    for (;;) {
      skipBlanks();
      skipComment();
      if (atEnd() || next() != '\n') return;
      advance();
    }
  }

  ConfigEntry readEntry() {
    ConfigEntry entry;
    entry.line = line_;
    entry.name = readName();
    skipBlanks();
    if (next() == '.')
      fail("'" + entry.name + ".' begins a dotted name; options stand at the top level, not in sections");
    if (next() != '=') fail("'" + entry.name + "' is not followed by '= value'");
    advance();
    skipBlanks();
    entry.values = next() == '[' ? readList() : std::vector{readValue()};
    skipBlanks();
    skipComment();
    if (next() != '\n')
      fail("there is more behind the value of '" + entry.name + "'; a text with blanks is put in quotes");
    return entry;
  }

  std::string readName() {
    if (next() == '[') fail("a section in brackets; options stand at the top level, not in sections");
    if (next() == '"' || next() == '\'') return readQuoted();
    const std::size_t begin = place_;
    while (!atEnd() && isNameCharacter(next())) advance();
    if (place_ == begin) fail("here a line 'name = value' is expected");
    return std::string(text_.substr(begin, place_ - begin));
  }

  std::vector<std::string> readList() {
    const int first = line_;
    std::vector<std::string> values;
    advance();
    for (skipToEntry(); next() != ']' || atEnd(); skipToEntry()) {
      if (atEnd()) fail("the list has no ']'", first);
      values.push_back(readValue());
      skipToEntry();
      if (next() == ',') {
        advance();
      } else if (next() != ']' && !atEnd()) {
        fail("after a value of a list, ',' or ']' is expected");
      }
    }
    advance();
    return values;
  }

  std::string readValue() {
    if (next() == '"' || next() == '\'') return readQuoted();
    const std::size_t begin = place_;
    while (!atEnd() && std::string_view(" \t\r\n,[]#\"'=").find(next()) == std::string_view::npos) advance();
    if (place_ == begin) fail("a value is missing");
    std::string word(text_.substr(begin, place_ - begin));
    const bool isNumber = word.find_first_not_of("0123456789_+-.eE") == std::string::npos;
    if (isNumber) std::erase(word, '_');  // 1_000_000
    return word;
  }

  std::string readQuoted() {
    const char quote = next();
    std::string content;
    advance();
    while (next() != quote) {
      if (atEnd() || next() == '\n') fail(std::string("the quote ") + quote + " is not closed on its line");
      const bool escaped = quote == '"' && next() == '\\';
      if (escaped) advance();
      content += escaped ? unescaped(next()) : next();
      advance();
    }
    advance();
    return content;
  }

  char unescaped(char letter) const {
    constexpr std::string_view letters = "ntr\"\\", meanings = "\n\t\r\"\\";
    const std::size_t which = letters.find(letter);
    if (atEnd() || which == std::string_view::npos) {
      fail(
          "a backslash in double quotes stands only before n, t, r, \" and \\; in single quotes it is a plain "
          "character");
    }
    return meanings[which];
  }

  std::string_view text_;
  const std::string& source_;
  std::size_t place_ = 0;
  int line_ = 1;
};

}  // namespace

std::vector<ConfigEntry> parseConfigText(std::string_view text, const std::string& source) {
  return Parser(text, source).run();
}

}  // namespace tandem::base
