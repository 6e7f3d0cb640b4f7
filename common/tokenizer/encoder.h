#pragma once
// An encoder: a tokenizer with a memory of the words seen so far, for one thread.
//
// Most words of a text have been seen before, so their tokens are looked up instead of merged again. The memory is
// bounded and forgets rarely used words first; it changes the speed alone, never the ids.

#include <cstdint>
#include <string_view>
#include <vector>

#include "common/tokenizer/tokenizer.h"

namespace tandem::tokenizer {

namespace detail {
class WordCache;
}

class Encoder {
 public:
  // Textual bytes expected to come choose the size of the memory, from some KiB to some MiB.
  explicit Encoder(Tokenizer tokenizer, std::int64_t expectedBytes = std::int64_t{1} << 40);
  ~Encoder();
  Encoder(Encoder&&) noexcept;
  Encoder& operator=(Encoder&&) noexcept;

  // Appends the tokens of a text; as Tokenizer::encode.
  void encode(std::string_view text, std::vector<TokenId>& ids, EncodeOptions options = {});

  const Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  void encodeNormalized(std::string_view text, std::vector<TokenId>& ids, EncodeOptions options);
  void encodeWords(std::string_view text, std::vector<TokenId>& ids);

  Tokenizer tokenizer_;
  std::unique_ptr<detail::WordCache> cache_;
};

}  // namespace tandem::tokenizer
