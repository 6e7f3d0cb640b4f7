#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>

#include "common/base/error.h"
#include "common/base/json.h"
#include "common/tokenizer/detail/byte_alphabet.h"
#include "common/tokenizer/detail/pattern_regex.h"
#include "common/tokenizer/detail/vocabulary.h"
#include "common/tokenizer/tokenizer_json.h"

namespace tandem::tokenizer {
namespace {

using nlohmann::json;

bool isPrintableAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c <= '~'; });
}

// Reads one tokenizer.json into a definition, field by field; a method a field.
class Reader {
 public:
  explicit Reader(std::string origin) : origin_(std::move(origin)) {}

  Definition read(std::string_view text) {
    const json root = parse(text);
    if (!root.is_object()) fail("the file", "is no JSON object");
    readModel(member(root, "model", "model"));
    readAddedTokens(root.value("added_tokens", json()));
    readUnknown(root["model"]);
    checkNoHoles();
    readNormalizer(root.value("normalizer", json()), "normalizer");
    readPreTokenizer(root.value("pre_tokenizer", json()));
    readPostProcessor(root.value("post_processor", json()), "post_processor");
    const json decoder = root.value("decoder", json());
    if (!decoder.is_null() && type(decoder, "decoder") != "ByteLevel") unsupported("decoder.type", type(decoder, ""));
    return std::move(definition_);
  }

 private:
  [[noreturn]] void fail(const std::string& field, const std::string& reason) const {
    throw base::Error(base::ErrorKind::badData, origin_ + ": " + field + " " + reason);
  }
  [[noreturn]] void unsupported(const std::string& field, const json& value) const {
    std::string shown = base::lenientJsonText(value);
    if (shown.size() > 200) shown = shown.substr(0, 200) + "...";
    fail(field, "is " + shown + ", which is not supported: only byte-level BPE with a known pattern is");
  }
  const json& list(const json& object, const char* key, const std::string& field) const {
    const json& found = member(object, key, field);
    if (!found.is_array()) fail(field, "is no JSON array");
    return found;
  }
  const json& member(const json& object, const char* key, const std::string& field) const {
    if (!object.is_object()) fail(field, "is missing: it should be in a JSON object");
    const auto found = object.find(key);
    if (found == object.end()) fail(field, "is missing");
    return *found;
  }
  std::string text(const json& value, const std::string& field) const {
    if (!value.is_string()) fail(field, "is no text");
    return value.get<std::string>();
  }
  std::string type(const json& object, const std::string& field) const {
    return text(member(object, "type", field + ".type"), field + ".type");
  }
  bool flag(const json& object, const char* key, bool otherwise, const std::string& field) const {
    const auto found = object.find(key);
    if (found == object.end() || found->is_null()) return otherwise;
    if (!found->is_boolean()) fail(field + "." + key, "is neither true nor false");
    return found->get<bool>();
  }
  TokenId id(const json& value, const std::string& field) const {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() >= detail::noToken) {
      fail(field, "is no token id: a whole number from 0 to " + std::to_string(detail::noToken - 1));
    }
    return value.get<TokenId>();
  }

  // The parser keeps the last of equal keys; in the vocabulary that would lose a token.
  json parse(std::string_view source) const {
    constexpr int vocabularyDepth = 3;
    std::unordered_set<std::string> keys;
    const auto watch = [&](int depth, json::parse_event_t event, json& value) {
      if (event == json::parse_event_t::object_start && depth == vocabularyDepth - 1) keys.clear();
      if (event == json::parse_event_t::key && depth == vocabularyDepth) {
        if (!keys.insert(value.get_ref<const std::string&>()).second) {
          fail("the key '" + value.get<std::string>() + "'", "is there twice in one object");
        }
      }
      return true;
    };
    base::refuseDeepNesting(source, base::ErrorKind::badData, origin_);
    try {
      return json::parse(source.begin(), source.end(), watch);
    } catch (const json::exception& error) {
      fail("the file", std::string("is no well-formed JSON: ") + error.what());
    }
  }

  void readModel(const json& model) {
    if (!model.is_object()) fail("model", "is no JSON object");
    if (model.contains("type") && type(model, "model") != "BPE") unsupported("model.type", model["type"]);
    if (flag(model, "byte_fallback", false, "model")) unsupported("model.byte_fallback", true);
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const json value = model.value(key, json());
      if (!value.is_null() && value != "") unsupported(std::string("model.") + key, value);
    }
    const json dropout = model.value("dropout", json());
    if (!dropout.is_null() && dropout != 0.0) unsupported("model.dropout", dropout);
    definition_.ignoresMerges = flag(model, "ignore_merges", false, "model");
    definition_.ranksByToken = flag(model, "ranks_by_token", false, "model");
    definition_.fusesUnknown = flag(model, "fuse_unk", false, "model");
    readVocabulary(member(model, "vocab", "model.vocab"));
    readMerges(member(model, "merges", "model.merges"));
  }

  void readVocabulary(const json& vocabulary) {
    if (!vocabulary.is_object()) fail("model.vocab", "is no JSON object");
    for (const auto& [key, value] : vocabulary.items()) {
      const TokenId tokenId = id(value, "model.vocab['" + key + "']");
      const auto bytes = detail::fromByteAlphabet(key);
      place(tokenId, {bytes ? *bytes : key, !bytes.has_value()}, key);
      idOfKey_.emplace(key, tokenId);
    }
  }

  // Ids are at most a few times as many as tokens in any sound file; a huge one must not take the memory of its size.
  void place(TokenId tokenId, Token token, const std::string& key) {
    const auto [found, isNew] = placed_.emplace(tokenId, std::move(token));
    if (!isNew) fail("the token '" + key + "'", "has the id " + std::to_string(tokenId) + " of another token");
  }

  void checkNoHoles() {
    definition_.tokens.resize(placed_.size());
    for (auto& [tokenId, token] : placed_) {
      if (tokenId >= definition_.tokens.size()) {
        TokenId hole = 0;
        while (placed_.contains(hole)) ++hole;
        fail("model.vocab", "with added_tokens has a hole: no token has the id " + std::to_string(hole) +
                                ", but one has " + std::to_string(tokenId));
      }
    }
    for (auto& [tokenId, token] : placed_) definition_.tokens[tokenId] = std::move(token);
  }

  TokenId idOfPart(const std::string& part, const std::string& field) const {
    const auto found = idOfKey_.find(part);
    if (found == idOfKey_.end()) fail(field, "needs the token '" + part + "', which model.vocab does not have");
    return found->second;
  }

  void readMerges(const json& merges) {
    if (!merges.is_array()) fail("model.merges", "is no JSON array");
    for (std::size_t i = 0; i < merges.size(); ++i) {
      const std::string field = "model.merges[" + std::to_string(i) + "]";
      const json& merge = merges[i];
      std::string left;
      std::string right;
      if (merge.is_array() && merge.size() == 2) {
        left = text(merge[0], field);
        right = text(merge[1], field);
      } else {
        const std::string both = merge.is_string() ? merge.get<std::string>() : std::string();
        const std::size_t space = both.find(' ');
        if (space == std::string::npos || both.find(' ', space + 1) != std::string::npos) {
          fail(field, "is neither \"left right\" nor [\"left\", \"right\"]");
        }
        left = both.substr(0, space);
        right = both.substr(space + 1);
      }
      definition_.merges.push_back({idOfPart(left, field), idOfPart(right, field), idOfPart(left + right, field)});
    }
  }

  void readAddedTokens(const json& added) {
    if (added.is_null()) return;
    if (!added.is_array()) fail("added_tokens", "is no JSON array");
    for (std::size_t i = 0; i < added.size(); ++i) {
      const std::string field = "added_tokens[" + std::to_string(i) + "]";
      const std::string content = text(member(added[i], "content", field + ".content"), field + ".content");
      if (content.empty()) fail(field + ".content", "is empty");
      const TokenId tokenId = id(member(added[i], "id", field + ".id"), field + ".id");
      for (const char* key : {"lstrip", "rstrip", "single_word"}) {
        if (flag(added[i], key, false, field)) unsupported(field + "." + key, true);
      }
      placeAdded(content, tokenId, field);
      definition_.addedTokens.push_back(
          {tokenId, flag(added[i], "special", false, field), flag(added[i], "normalized", true, field)});
    }
  }

  void placeAdded(const std::string& content, TokenId tokenId, const std::string& field) {
    const auto [known, isNew] = idOfKey_.emplace(content, tokenId);
    if (known->second != tokenId) {
      fail(field, "has the id " + std::to_string(tokenId) + ", but its content '" + content + "' has the id " +
                      std::to_string(known->second) + " already");
    }
    if (isNew) place(tokenId, {content, true}, content);
    // As an added token it stands for its text, not for bytes written in the alphabet.
    if (!isNew && !isPrintableAscii(content)) placed_[tokenId] = {content, true};
  }

  void readUnknown(const json& model) {
    const json unknown = model.value("unk_token", json());
    if (unknown.is_null()) return;
    const std::string content = text(unknown, "model.unk_token");
    const auto found = idOfKey_.find(content);
    if (found == idOfKey_.end()) fail("model.unk_token", "is '" + content + "', which is no token");
    definition_.unknown = found->second;
  }

  void readNormalizer(const json& normalizer, const std::string& field) {
    if (normalizer.is_null()) return;
    const std::string kind = type(normalizer, field);
    if (kind == "NFC") {
      definition_.normalizesToC = true;
    } else if (kind == "Sequence") {
      const json& steps = list(normalizer, "normalizers", field + ".normalizers");
      for (std::size_t i = 0; i < steps.size(); ++i) {
        readNormalizer(steps[i], field + ".normalizers[" + std::to_string(i) + "]");
      }
    } else {
      unsupported(field + ".type", kind);
    }
  }

  bool byteLevelUsesRegex(const json& step, const std::string& field) const {
    if (type(step, field) != "ByteLevel") unsupported(field + ".type", step["type"]);
    if (flag(step, "add_prefix_space", true, field)) unsupported(field + ".add_prefix_space", true);
    return flag(step, "use_regex", true, field);
  }

  void readPreTokenizer(const json& step) {
    const std::string field = "pre_tokenizer";
    if (step.is_null()) unsupported(field, step);
    if (type(step, field) != "Sequence") {
      if (!byteLevelUsesRegex(step, field)) unsupported(field + ".use_regex", false);
      definition_.pattern = Pattern::gpt2;
      return;
    }
    const json& steps = member(step, "pretokenizers", field + ".pretokenizers");
    if (!steps.is_array() || steps.size() != 2) unsupported(field + ".pretokenizers", steps);
    const std::string first = field + ".pretokenizers[0]";
    const bool usesRegex = byteLevelUsesRegex(steps[1], field + ".pretokenizers[1]");
    if (type(steps[0], first) == "Digits") {
      if (!flag(steps[0], "individual_digits", false, first)) unsupported(first + ".individual_digits", false);
      if (!usesRegex) unsupported(field + ".pretokenizers[1].use_regex", false);
      definition_.pattern = Pattern::gpt2Digits;
      return;
    }
    if (usesRegex) unsupported(field + ".pretokenizers[1].use_regex", true);
    definition_.pattern = splitPattern(steps[0], first);
  }

  Pattern splitPattern(const json& step, const std::string& field) const {
    if (type(step, field) != "Split") unsupported(field + ".type", step["type"]);
    if (member(step, "behavior", field + ".behavior") != "Isolated") unsupported(field + ".behavior", step["behavior"]);
    if (flag(step, "invert", false, field)) unsupported(field + ".invert", true);
    const json& regex = member(member(step, "pattern", field + ".pattern"), "Regex", field + ".pattern.Regex");
    const auto pattern = detail::patternOfRegex(text(regex, field + ".pattern.Regex"));
    if (!pattern) unsupported(field + ".pattern.Regex", regex);
    return *pattern;
  }

  void readPostProcessor(const json& step, const std::string& field) {
    if (step.is_null()) return;
    const std::string kind = type(step, field);
    if (kind == "ByteLevel") return;
    if (kind == "Sequence") {
      const json& steps = list(step, "processors", field + ".processors");
      for (std::size_t i = 0; i < steps.size(); ++i) {
        readPostProcessor(steps[i], field + ".processors[" + std::to_string(i) + "]");
      }
      return;
    }
    if (kind != "TemplateProcessing") unsupported(field + ".type", kind);
    readTemplate(member(step, "single", field + ".single"), field + ".single");
  }

  void readTemplate(const json& single, const std::string& field) {
    if (!single.is_array()) fail(field, "is no JSON array");
    bool behindText = false;
    for (const json& piece : single) {
      if (piece.is_object() && piece.contains("Sequence")) {
        behindText = true;
        continue;
      }
      const json& special = member(piece, "SpecialToken", field + ".SpecialToken");
      const TokenId added = idOfPart(text(member(special, "id", field + ".SpecialToken.id"), field), field);
      auto& end = behindText ? definition_.templateEnd : definition_.templateBegin;
      if (end) unsupported(field, single);
      end = added;
    }
  }

  std::string origin_;
  Definition definition_;
  std::unordered_map<std::string, TokenId> idOfKey_;
  std::unordered_map<TokenId, Token> placed_;
};

}  // namespace

Tokenizer fromJson(std::string_view text, const std::string& origin) {
  return Tokenizer(Reader(origin).read(text), origin);
}

}  // namespace tandem::tokenizer
