#pragma once
// The stored answers of other tokenizers (make_golden.py), and small helpers of these tests.

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/error.h"
#include "common/tokenizer/tokenizer.h"

namespace tandem::tokenizer {

const nlohmann::json& golden();

// The golden tokens of a pattern as a .tiktoken file.
std::string goldenTiktoken(const std::string& pattern);

// A Hugging Face tokenizer.json of the golden data, parsed, to be changed by a test.
nlohmann::json goldenTokenizer(const std::string& pattern);

std::string base64(std::string_view bytes);

// Texts of bytes that are hard to keep: ill-formed, cut and overlong UTF-8, NULs, noise.
std::vector<std::string> hardBytes();

// The message of the Error that `action` throws, which must be of this kind; "" and a failure if it throws none.
template <typename Action>
std::string messageOf(base::ErrorKind kind, Action&& action);

void expectKind(const base::Error& error, base::ErrorKind kind);
void failForNoError();

template <typename Action>
std::string messageOf(base::ErrorKind kind, Action&& action) {
  try {
    action();
  } catch (const base::Error& error) {
    expectKind(error, kind);
    return error.message();
  }
  failForNoError();
  return "";
}

}  // namespace tandem::tokenizer
