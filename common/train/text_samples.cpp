#include "common/train/text_samples.h"

#include <algorithm>

#include "common/base/error.h"
#include "common/runtime/generator.h"
#include "common/tokenizer/tokenizer_json.h"

namespace tandem::train {

TextSamples::TextSamples(std::vector<std::string> prompts, std::int64_t tokens, const std::string& tokenizer,
                         const model::Configuration& configuration)
    : prompts_(std::move(prompts)),
      tokens_(tokens),
      tokenizer_(tokenizer::fromJson(tokenizer, "the training data's tokenizer")),
      configuration_(configuration) {
  for (const std::string& prompt : prompts_) {
    const std::int64_t count = std::ssize(tokensOf(prompt));
    if (count > 0 && count < configuration.maximumPositions) continue;
    throw base::Error(base::ErrorKind::usage, "--sample-prompt '" + prompt + "' has " + std::to_string(count) +
                                                  " tokens; possible are 1 to " +
                                                  std::to_string(configuration.maximumPositions - 1));
  }
}

// As in training: a document's begin token, then the text.
std::vector<std::int32_t> TextSamples::tokensOf(const std::string& prompt) const {
  std::vector<std::int32_t> tokens;
  if (tokenizer_.beginToken()) tokens.push_back(static_cast<std::int32_t>(*tokenizer_.beginToken()));
  for (const tokenizer::TokenId id : tokenizer_.encode(prompt)) tokens.push_back(static_cast<std::int32_t>(id));
  return tokens;
}

std::vector<std::string> TextSamples::write(const runtime::ParameterStore& parameters, const Device& device) const {
  std::vector<runtime::GenerationRequest> requests;
  std::int64_t capacity = 0;
  for (const std::string& prompt : prompts_) {
    requests.push_back({.prompt = tokensOf(prompt),
                        .maxTokens = tokens_,
                        .stopTokens = {},
                        .sequence = static_cast<std::uint64_t>(requests.size())});
    if (tokenizer_.endToken()) requests.back().stopTokens = {static_cast<std::int32_t>(*tokenizer_.endToken())};
    capacity = std::max(capacity, std::ssize(requests.back().prompt) + tokens_);
  }
  runtime::Generator generator(configuration_, parameters, std::ssize(requests),
                               std::min(capacity, configuration_.maximumPositions), device.backend, device.stream,
                               device.arena);
  std::vector<std::string> texts;
  for (const runtime::Generation& answer : generator.run(requests, {})) {
    std::string& text = texts.emplace_back();
    for (const std::int32_t token : answer.tokens) {
      // A vocabulary may be smaller than the model's table; the rows beyond it stand for nothing.
      if (token < tokenizer_.vocabularySize()) text += tokenizer_.tokenBytes(static_cast<tokenizer::TokenId>(token));
    }
  }
  return texts;
}

}  // namespace tandem::train
