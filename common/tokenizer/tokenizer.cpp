#include "common/tokenizer/tokenizer.h"

#include <algorithm>
#include <unordered_map>

#include "common/base/error.h"
#include "common/base/hash.h"
#include "common/tokenizer/detail/tables.h"
#include "common/tokenizer/encoder.h"
#include "common/tokenizer/tokenizer_json.h"

namespace tandem::tokenizer {
namespace {

using base::Error;
using base::ErrorKind;

void checkId(TokenId id, const Definition& definition, const char* what, const std::string& origin) {
  if (id < definition.tokens.size()) return;
  throw Error(ErrorKind::badData, origin + ": " + what + " has the id " + std::to_string(id) +
                                      ", but the vocabulary ends at " +
                                      std::to_string(static_cast<std::int64_t>(definition.tokens.size()) - 1));
}

void checkTokens(const Definition& definition, const std::string& origin) {
  if (definition.tokens.empty()) throw Error(ErrorKind::badData, origin + ": the vocabulary is empty");
  std::unordered_map<std::string_view, TokenId> ofBytes;
  for (TokenId id = 0; id < definition.tokens.size(); ++id) {
    const Token& token = definition.tokens[id];
    if (token.bytes.empty()) {
      throw Error(ErrorKind::badData, origin + ": the token " + std::to_string(id) + " is empty");
    }
    if (token.literal) continue;
    const auto [known, isNew] = ofBytes.emplace(token.bytes, id);
    if (!isNew) {
      throw Error(ErrorKind::badData, origin + ": the tokens " + std::to_string(known->second) + " and " +
                                          std::to_string(id) + " have the same bytes; keep one of them");
    }
  }
}

void checkMerges(const Definition& definition, const std::string& origin) {
  for (std::size_t i = 0; i < definition.merges.size(); ++i) {
    const Merge& merge = definition.merges[i];
    for (const TokenId id : {merge.left, merge.right, merge.result}) checkId(id, definition, "a merge", origin);
    const auto bytes = [&](TokenId id) -> const std::string& { return definition.tokens[id].bytes; };
    if (bytes(merge.left) + bytes(merge.right) != bytes(merge.result)) {
      throw Error(ErrorKind::badData, origin + ": merge " + std::to_string(i) + " joins the tokens " +
                                          std::to_string(merge.left) + " and " + std::to_string(merge.right) +
                                          ", but its result " + std::to_string(merge.result) + " has other bytes");
    }
  }
}

Definition checked(Definition definition, const std::string& origin) {
  checkTokens(definition, origin);
  checkMerges(definition, origin);
  for (const AddedToken& added : definition.addedTokens) {
    checkId(added.id, definition, "an added token", origin);
  }
  std::stable_sort(definition.addedTokens.begin(), definition.addedTokens.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  std::unordered_map<std::string_view, TokenId> ofContent;
  for (const AddedToken& added : definition.addedTokens) {
    const auto [known, isNew] = ofContent.emplace(definition.tokens[added.id].bytes, added.id);
    if (!isNew) {
      throw Error(ErrorKind::badData, origin + ": the added token '" + definition.tokens[added.id].bytes +
                                          "' is there twice, with the ids " + std::to_string(known->second) + " and " +
                                          std::to_string(added.id));
    }
  }
  if (definition.unknown) checkId(*definition.unknown, definition, "the unknown token", origin);
  if (definition.templateBegin) checkId(*definition.templateBegin, definition, "the begin token", origin);
  if (definition.templateEnd) checkId(*definition.templateEnd, definition, "the end token", origin);
  return definition;
}

std::optional<TokenId> firstAdded(const Definition& definition, std::initializer_list<std::string_view> contents) {
  for (const std::string_view content : contents) {
    for (const AddedToken& added : definition.addedTokens) {
      if (definition.tokens[added.id].bytes == content) return added.id;
    }
  }
  return std::nullopt;
}

}  // namespace

detail::Tables::Tables(Definition given)
    : definition(std::move(given)),
      vocabulary(definition.tokens),
      merger(definition, vocabulary),
      isSpecial(definition.tokens.size()) {
  for (const AddedToken& added : definition.addedTokens) {
    const std::string& content = definition.tokens[added.id].bytes;
    isSpecial[added.id] = added.special;
    (added.normalized ? addedNormalized : addedAsGiven).add(content, added.id, added.special);
  }
  const bool hasTemplate = definition.templateBegin || definition.templateEnd;
  beginToken =
      hasTemplate ? definition.templateBegin : firstAdded(definition, {"<|begin_of_text|>", "<s>", "<|endoftext|>"});
  endToken = definition.templateEnd ? definition.templateEnd
                                    : firstAdded(definition, {"<|end_of_text|>", "</s>", "<|endoftext|>"});
  json = writeTokenizerJson(definition);
  hash = base::hashHex(json);
}

Tokenizer::Tokenizer(Definition definition, const std::string& origin)
    : tables_(std::make_shared<const detail::Tables>(checked(std::move(definition), origin))) {}

void Tokenizer::encode(std::string_view text, std::vector<TokenId>& ids, EncodeOptions options) const {
  Encoder(*this, static_cast<std::int64_t>(text.size())).encode(text, ids, options);
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  std::vector<TokenId> ids;
  encode(text, ids, options);
  return ids;
}

std::string Tokenizer::decode(std::span<const TokenId> ids) const {
  std::string text;
  for (const TokenId id : ids) text += tokenBytes(id);
  return text;
}

std::int64_t Tokenizer::vocabularySize() const { return tables_->vocabulary.size(); }

std::string_view Tokenizer::tokenBytes(TokenId id) const {
  if (static_cast<std::int64_t>(id) >= vocabularySize()) {
    throw Error(ErrorKind::badData, "the token id " + std::to_string(id) + " is outside the vocabulary of " +
                                        std::to_string(vocabularySize()) +
                                        " tokens; the ids come from another tokenizer");
  }
  return tables_->vocabulary.bytes(id);
}

std::optional<TokenId> Tokenizer::specialId(std::string_view text) const {
  return firstAdded(tables_->definition, {text});
}

bool Tokenizer::isSpecial(TokenId id) const { return id < tables_->isSpecial.size() && tables_->isSpecial[id]; }
std::optional<TokenId> Tokenizer::beginToken() const { return tables_->beginToken; }
std::optional<TokenId> Tokenizer::endToken() const { return tables_->endToken; }
Pattern Tokenizer::pattern() const { return tables_->definition.pattern; }
const Definition& Tokenizer::definition() const { return tables_->definition; }
const std::string& Tokenizer::json() const { return tables_->json; }
const std::string& Tokenizer::hash() const { return tables_->hash; }

}  // namespace tandem::tokenizer
