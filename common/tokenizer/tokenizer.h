#pragma once
// A byte-level BPE tokenizer: text to token ids and back, by the same ids that Hugging Face tokenizers or tiktoken
// give.
//
// Immutable and cheap to copy (copies share their tables), so any number of threads may use one. For long work a thread
// makes its own Encoder (encoder.h), which remembers the words it has seen.
//
// No byte is ever dropped: unless a normaliser or an unknown token changes the text, decode(encode(x)) == x for every
// string of bytes, well-formed UTF-8 or not.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/tokenizer/definition.h"

namespace tandem::tokenizer {

namespace detail {
struct Tables;
}

struct EncodeOptions {
  // Whether the text of a special token stands for that token. Otherwise it is text like any other.
  bool parseSpecial = false;
};

class Tokenizer {
 public:
  // Throws Error of kind badData if the definition does not fit together: a token twice, a merge whose result is not
  // its parts joined, an id that does not exist. `origin` names the source in messages, such as a path.
  explicit Tokenizer(Definition definition, const std::string& origin);

  // Appends the tokens of a text. Throws Error of kind badData for a byte that has no token (see Definition::unknown).
  void encode(std::string_view text, std::vector<TokenId>& ids, EncodeOptions options = {}) const;
  std::vector<TokenId> encode(std::string_view text, EncodeOptions options = {}) const;

  // The bytes of the tokens, joined. Throws Error of kind badData for an id outside the vocabulary.
  std::string decode(std::span<const TokenId> ids) const;

  // One more than the highest id; there are no holes.
  std::int64_t vocabularySize() const;
  // The bytes of a token. Throws Error of kind badData for an id outside the vocabulary.
  std::string_view tokenBytes(TokenId id) const;
  // The id of an added token by its text.
  std::optional<TokenId> specialId(std::string_view text) const;
  bool isSpecial(TokenId id) const;
  // What a document begins and ends with: the tokens that the file's post-processor adds, else the first known one of
  // <|begin_of_text|>, <s>, <|endoftext|> and of <|end_of_text|>, </s>, <|endoftext|>. Ours is <|endoftext|> for both.
  std::optional<TokenId> beginToken() const;
  std::optional<TokenId> endToken() const;

  Pattern pattern() const;
  const Definition& definition() const;

  // The tokenizer as a tokenizer.json that Hugging Face tokenizers loads, in one canonical form, and its XXH3-128.
  const std::string& json() const;
  const std::string& hash() const;

  const detail::Tables& tables() const { return *tables_; }

 private:
  std::shared_ptr<const detail::Tables> tables_;
};

}  // namespace tandem::tokenizer
