#include "golden.h"

#include <gtest/gtest.h>

#include "common/base/files.h"
#include "common/base/random.h"
#include "common/tokenizer/detail/byte_alphabet.h"

namespace tandem::tokenizer {

const nlohmann::json& golden() {
  static const nlohmann::json data = nlohmann::json::parse(base::readFile(TANDEM_GOLDEN_JSON));
  return data;
}

std::string goldenTiktoken(const std::string& pattern) {
  std::string file;
  int rank = 0;
  for (const auto& token : golden()["patterns"][pattern]["tiktoken_tokens"]) {
    file += base64(*detail::fromByteAlphabet(token.get<std::string>())) + " " + std::to_string(rank++) + "\n";
  }
  return file;
}

nlohmann::json goldenTokenizer(const std::string& pattern) {
  return nlohmann::json::parse(golden()["patterns"][pattern]["tokenizer_json"].get<std::string>());
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t bits = 0;
    for (std::size_t j = 0; j < 3; ++j) {
      bits = (bits << 8) | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0u);
    }
    for (std::size_t j = 0; j < 4; ++j) {
      text += i + j <= bytes.size() ? digits[(bits >> (18 - 6 * j)) & 63] : '=';
    }
  }
  return text;
}

std::vector<std::string> hardBytes() {
  std::vector<std::string> texts = {std::string("\0start\0\0end\0", 11),
                                    "\xFF\xFE\xFD",
                                    "a\xC3",
                                    "\xC3(",
                                    "\xE2\x82",
                                    "\xE2\x82 \xAC",
                                    "\xF0\x9F\x98",
                                    "x\xF0\x9F\x98\x80\x80y",
                                    "\xC0\xAF\xC1\xBF",  // overlong
                                    "\xED\xA0\xBD\xED\xB8\x80",
                                    "\xF4\x90\x80\x80",  // surrogates, beyond U+10FFFF
                                    "caf\xE9 \xE0 la carte",
                                    "\xEF\xBB\xBFmark first",
                                    "\xF8\x88\x80\x80\x80 \xFC\x84\x80\x80\x80\x80"};
  std::string everyPair;
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) {
      everyPair += static_cast<char>(a);
      everyPair += static_cast<char>(b);
    }
  }
  texts.push_back(everyPair);
  base::RandomStream random(7, 1);
  for (int i = 0; i < 200; ++i) {
    std::string noise;
    for (auto size = random.nextBelow(40); size > 0; --size) noise += static_cast<char>(random.nextBelow(256));
    texts.push_back(noise);
  }
  return texts;
}

void expectKind(const base::Error& error, base::ErrorKind kind) {
  EXPECT_EQ(std::string(base::name(error.kind())), base::name(kind)) << error.message();
}

void failForNoError() { ADD_FAILURE() << "no Error was thrown"; }

}  // namespace tandem::tokenizer
