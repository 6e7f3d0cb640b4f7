// Text itself: whether it is UTF-8, how every pattern cuts it into words, NFC, and the way to ids and back.

#include <nlohmann/json.hpp>
#include <optional>

#include "common/data/detail/utf8.h"
#include "common/tokenizer/pattern.h"
#include "common/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz.h"

namespace tandem::fuzz {
namespace {

using tokenizer::Pattern;
constexpr Pattern patterns[] = {Pattern::gpt2,   Pattern::cl100k, Pattern::o200k,
                                Pattern::llama3, Pattern::qwen2,  Pattern::gpt2Digits};

// All bytes, some pairs, and added tokens.
tokenizer::Tokenizer make(Pattern pattern, bool normalizes) {
  tokenizer::Definition definition;
  definition.pattern = pattern;
  definition.normalizesToC = normalizes;
  for (int byte = 0; byte < 256; ++byte) definition.tokens.push_back({std::string(1, static_cast<char>(byte))});
  for (const auto& [left, right] :
       {std::pair<unsigned, unsigned>{' ', ' '}, {'e', ' '}, {0xc3, 0xa9}, {256, 256}, {'e', 0xcc}}) {
    const auto result = static_cast<tokenizer::TokenId>(definition.tokens.size());
    definition.merges.push_back({left, right, result});
    definition.tokens.push_back({definition.tokens[left].bytes + definition.tokens[right].bytes});
  }
  for (const char* added : {"<|endoftext|>", "<|e", "ee"}) {
    definition.addedTokens.push_back(
        {static_cast<tokenizer::TokenId>(definition.tokens.size()), added[0] == '<', normalizes});
    definition.tokens.push_back({added, true});
  }
  return tokenizer::Tokenizer(definition, "of the target");
}

bool isUtf8(std::string_view bytes) {
  try {
    static_cast<void>(nlohmann::json(bytes).dump());
    return true;
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

}  // namespace

void fuzzOne(std::string_view bytes) {
  demand((data::detail::countInvalidUtf8(bytes) == 0) == isUtf8(bytes), "UTF-8 is known from other bytes");
  for (const Pattern pattern : patterns) {
    std::string together;
    for (const std::string_view word : tokenizer::splitWords(pattern, bytes)) {
      demand(!word.empty(), "words are not empty");
      together += word;
    }
    demand(together == bytes, "the words are the text");
  }
  static const std::vector<tokenizer::Tokenizer> tokenizers = [] {
    std::vector<tokenizer::Tokenizer> made;
    for (const Pattern pattern : patterns) {
      for (const bool normalizes : {false, true}) made.push_back(make(pattern, normalizes));
    }
    return made;
  }();
  for (const tokenizer::Tokenizer& each : tokenizers) {
    for (const bool parseSpecial : {false, true}) {
      const std::string back = each.decode(each.encode(bytes, {.parseSpecial = parseSpecial}));
      if (!each.definition().normalizesToC) {
        demand(back == bytes, "text comes back as it was");
      } else {
        demand(!isUtf8(bytes) || isUtf8(back), "normalised text is text");
      }
    }
  }
}

}  // namespace tandem::fuzz
