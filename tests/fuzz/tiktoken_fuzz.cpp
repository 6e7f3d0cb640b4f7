// .tiktoken files.

#include <optional>

#include "common/tokenizer/tiktoken.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/tokenizer_checks.h"

void tandem::fuzz::fuzzOne(std::string_view bytes) {
  std::optional<tokenizer::Tokenizer> tokenizer;
  if (accepts([&] { tokenizer = tokenizer::fromTiktoken(bytes, tokenizer::Pattern::cl100k, "the input"); })) {
    checkTokenizer(*tokenizer, bytes);
  }
}
