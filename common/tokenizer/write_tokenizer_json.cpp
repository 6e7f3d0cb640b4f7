#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "common/tokenizer/detail/byte_alphabet.h"
#include "common/tokenizer/detail/pattern_regex.h"
#include "common/tokenizer/tokenizer_json.h"

namespace tandem::tokenizer {
namespace {

using Object = nlohmann::ordered_json;

// An ill-formed special token (only a caller can make one) must not stop the writing.
std::string dump(const Object& value) { return base::lenientJsonText(value); }

std::string key(const Token& token) { return token.literal ? token.bytes : detail::toByteAlphabet(token.bytes); }

Object byteLevel(bool usesRegex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", usesRegex}};
}

Object preTokenizer(Pattern pattern) {
  if (pattern == Pattern::gpt2) return byteLevel(true);
  Object steps = Object::array();
  if (pattern == Pattern::gpt2Digits) {
    steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
    steps.push_back(byteLevel(true));
  } else {
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", detail::regexOf(pattern)}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
    steps.push_back(byteLevel(false));
  }
  return {{"type", "Sequence"}, {"pretokenizers", steps}};
}

Object addedTokens(const Definition& definition) {
  Object list = Object::array();
  for (const AddedToken& added : definition.addedTokens) {
    list.push_back({{"id", added.id},
                    {"content", definition.tokens[added.id].bytes},
                    {"single_word", false},
                    {"lstrip", false},
                    {"rstrip", false},
                    {"normalized", added.normalized},
                    {"special", added.special}});
  }
  return list;
}

Object postProcessor(const Definition& definition) {
  if (!definition.templateBegin && !definition.templateEnd) return nullptr;
  Object single = Object::array();
  Object pair = Object::array();
  Object specials = Object::object();
  const auto add = [&](Object& pieces, TokenId id, int part) {
    const std::string& content = definition.tokens[id].bytes;
    pieces.push_back({{"SpecialToken", {{"id", content}, {"type_id", part}}}});
    specials[content] = {{"id", content}, {"ids", Object::array({id})}, {"tokens", Object::array({content})}};
  };
  const auto addText = [&](Object& pieces, const char* text, int part) {
    if (definition.templateBegin) add(pieces, *definition.templateBegin, part);
    pieces.push_back({{"Sequence", {{"id", text}, {"type_id", part}}}});
    if (definition.templateEnd) add(pieces, *definition.templateEnd, part);
  };
  addText(single, "A", 0);
  addText(pair, "A", 0);
  addText(pair, "B", 1);
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", specials}};
}

// The vocabulary, by id, up to the last token that is not added: those behind it get their ids in added_tokens.
std::string vocabulary(const Definition& definition) {
  std::vector<bool> isAdded(definition.tokens.size());
  for (const AddedToken& added : definition.addedTokens) isAdded[added.id] = true;
  std::size_t size = definition.tokens.size();
  while (size > 0 && isAdded[size - 1] && definition.tokens[size - 1].literal) --size;
  std::string text = "{";
  for (std::size_t id = 0; id < size; ++id) {
    text += id == 0 ? "\n" : ",\n";
    text += dump(key(definition.tokens[id])) + ":" + std::to_string(id);
  }
  return text + "}";
}

std::string merges(const Definition& definition) {
  std::string text = "[";
  for (const Merge& merge : definition.merges) {
    text += text.size() == 1 ? "\n" : ",\n";
    const std::string left = key(definition.tokens[merge.left]);
    const std::string right = key(definition.tokens[merge.right]);
    // Every version reads "left right"; only parts with a space need the newer spelling.
    const bool hasSpace = left.find(' ') != std::string::npos || right.find(' ') != std::string::npos;
    text += dump(hasSpace ? Object::array({left, right}) : Object(left + " " + right));
  }
  return text + "]";
}

}  // namespace

std::string writeTokenizerJson(const Definition& definition) {
  const Object unknown = definition.unknown ? Object(key(definition.tokens[*definition.unknown])) : Object(nullptr);
  Object decoder = byteLevel(true);
  const Object normalizer = definition.normalizesToC ? Object{{"type", "NFC"}} : Object(nullptr);
  std::string text = "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\n";
  text += "\"added_tokens\":" + dump(addedTokens(definition)) + ",\n";
  text += "\"normalizer\":" + dump(normalizer) + ",\n";
  text += "\"pre_tokenizer\":" + dump(preTokenizer(definition.pattern)) + ",\n";
  text += "\"post_processor\":" + dump(postProcessor(definition)) + ",\n";
  text += "\"decoder\":" + dump(decoder) + ",\n";
  text += "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":" + dump(unknown) +
          ",\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null";
  text += std::string(",\"fuse_unk\":") + (definition.fusesUnknown ? "true" : "false");
  text += std::string(",\"byte_fallback\":false,\"ignore_merges\":") + (definition.ignoresMerges ? "true" : "false");
  // A field of ours, which others pass over: see Definition::ranksByToken.
  if (definition.ranksByToken) text += ",\"ranks_by_token\":true";
  text += ",\n\"vocab\":" + vocabulary(definition) + ",\n\"merges\":" + merges(definition) + "}}\n";
  return text;
}

}  // namespace tandem::tokenizer
