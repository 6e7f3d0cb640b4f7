#include "common/tokenizer/detail/pattern_regex.h"

#include <array>

#include "common/base/error.h"

namespace tandem::tokenizer::detail {
namespace {

struct Spelling {
  Pattern pattern;
  std::string_view regex;
};

// The first spelling of a pattern is the one that is written.
constexpr std::array<Spelling, 9> spellings = {{
    {Pattern::gpt2, R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
    {Pattern::gpt2, R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
    // tiktoken writes \s++$, where $ is the end of the text; in this engine that is \z.
    {Pattern::cl100k, R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
                      R"(|\s+\z|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {Pattern::o200k,
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
     R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
     R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {Pattern::llama3, R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
                      R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {Pattern::llama3, R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*)"
                      R"(|\s*[\r\n]|\s+(?!\S)|\s+)"},
    {Pattern::llama3, R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
                      R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {Pattern::qwen2, R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
                     R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {Pattern::qwen2, R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
                     R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"},
}};

}  // namespace

std::optional<Pattern> patternOfRegex(std::string_view regex) {
  for (const Spelling& spelling : spellings) {
    if (spelling.regex == regex) return spelling.pattern;
  }
  return std::nullopt;
}

std::string regexOf(Pattern pattern) {
  for (const Spelling& spelling : spellings) {
    if (spelling.pattern == pattern) return std::string(spelling.regex);
  }
  TANDEM_ASSERT(false, "a pattern that is no single regular expression");
}

}  // namespace tandem::tokenizer::detail
