#pragma once
// Patterns: how a text is cut into words before byte pairs are merged inside each word.
//
// The patterns are known by the regular expressions that their tokenizers publish; here each is a hand-written state
// machine over Unicode categories that gives the same cuts without a regex engine: no backtracking, no recursion, and
// time linear in the text whatever it holds. Every byte of the text is in exactly one word. A byte that is no part of
// well-formed UTF-8 counts as a symbol of its own: neither letter, mark, number nor white space.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::tokenizer {

enum class Pattern {
  gpt2,        // GPT-2, and ByteLevel(use_regex) of Hugging Face tokenizers
  cl100k,      // GPT-4, as tiktoken has it: white space that ends the text is one word
  o200k,       // GPT-4o: words split where case changes, with their contraction
  llama3,      // Llama 3: cl100k as first published, numbers in threes
  qwen2,       // Qwen2: llama3 with single digits
  gpt2Digits,  // SmolLM2: every digit alone, gpt2 between them
};

const char* name(Pattern pattern);

// The pattern of a name as name() gives it. Throws Error of kind usage, with the names, for any other.
Pattern parsePattern(std::string_view text);

// The words of a text, in order; together they are the text.
std::vector<std::string_view> splitWords(Pattern pattern, std::string_view text);

}  // namespace tandem::tokenizer
