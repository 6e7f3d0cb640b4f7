#include "tests/fuzz/tokenizer_checks.h"

#include "common/tokenizer/tokenizer_json.h"
#include "tests/fuzz/fuzz.h"

namespace tandem::fuzz {
namespace {

// Whether every text can come back: each byte has a token, and nothing is normalised away.
bool keepsBytes(const tokenizer::Tokenizer& tokenizer) {
  std::vector<bool> has(256);
  for (const tokenizer::Token& token : tokenizer.definition().tokens) {
    if (!token.literal && token.bytes.size() == 1) has[static_cast<unsigned char>(token.bytes[0])] = true;
  }
  for (const bool byte : has) {
    if (!byte) return false;
  }
  return !tokenizer.definition().normalizesToC;
}

}  // namespace

void checkTokenizer(const tokenizer::Tokenizer& tokenizer, std::string_view input) {
  const tokenizer::Tokenizer again = tokenizer::fromJson(tokenizer.json(), "what was written");
  demand(again.json() == tokenizer.json() && again.hash() == tokenizer.hash(), "a tokenizer written is read as it was");
  std::string text = "The cat's 1234 caf\xc3\xa9s, \xe6\xbc\xa2\xe5\xad\x97\xf0\x9f\x98\x80\r\n\n\t  x\xff\xc3 ";
  text += input.substr(0, 300);
  for (const bool parseSpecial : {false, true}) {
    accepts([&] {
      const std::vector<tokenizer::TokenId> ids = tokenizer.encode(text, {.parseSpecial = parseSpecial});
      demand(ids == again.encode(text, {.parseSpecial = parseSpecial}), "the tokenizer read again gives the same ids");
      const std::string decoded = tokenizer.decode(ids);
      demand(!keepsBytes(tokenizer) || decoded == text, "text comes back as it was");
    });
  }
}

}  // namespace tandem::fuzz
