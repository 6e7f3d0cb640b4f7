#include "common/tokenizer/pattern.h"

#include <array>
#include <utility>

#include "common/base/error.h"
#include "common/tokenizer/detail/word_scanner.h"

namespace tandem::tokenizer {
namespace {

constexpr std::array<std::pair<Pattern, const char*>, 6> names = {{{Pattern::gpt2, "gpt2"},
                                                                   {Pattern::cl100k, "cl100k"},
                                                                   {Pattern::o200k, "o200k"},
                                                                   {Pattern::llama3, "llama3"},
                                                                   {Pattern::qwen2, "qwen2"},
                                                                   {Pattern::gpt2Digits, "gpt2-digits"}}};

}  // namespace

const char* name(Pattern pattern) {
  for (const auto& [candidate, text] : names) {
    if (candidate == pattern) return text;
  }
  TANDEM_ASSERT(false, "a pattern without a name");
}

Pattern parsePattern(std::string_view text) {
  std::string known;
  for (const auto& [pattern, candidate] : names) {
    if (text == candidate) return pattern;
    known += (known.empty() ? "" : ", ") + std::string(candidate);
  }
  throw base::Error(base::ErrorKind::usage,
                    "there is no pattern named '" + std::string(text) + "'; the patterns are " + known);
}

std::vector<std::string_view> splitWords(Pattern pattern, std::string_view text) {
  std::vector<std::string_view> words;
  detail::forEachWord(pattern, text, [&](const char* begin, const char* end) {
    words.emplace_back(begin, static_cast<std::size_t>(end - begin));
  });
  return words;
}

}  // namespace tandem::tokenizer
