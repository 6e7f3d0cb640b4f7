// tokenizer.json.

#include <optional>

#include "common/tokenizer/tokenizer_json.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/tokenizer_checks.h"

void tandem::fuzz::fuzzOne(std::string_view bytes) {
  std::optional<tokenizer::Tokenizer> tokenizer;
  if (accepts([&] { tokenizer = tokenizer::fromJson(bytes, "the input"); })) checkTokenizer(*tokenizer, bytes);
}
