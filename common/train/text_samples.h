#pragma once
// What the model writes while it is trained: it goes on from a few prompts, the same ones each time.

#include <cstdint>
#include <string>
#include <vector>

#include "common/model/configuration.h"
#include "common/runtime/parameter_store.h"
#include "common/tokenizer/tokenizer.h"
#include "common/train/device.h"

namespace tandem::train {

class TextSamples {
 public:
  // `tokenizer`: tokenizer.json text. Throws Error of kind usage for a prompt that leaves no room for an answer.
  TextSamples(std::vector<std::string> prompts, std::int64_t tokens, const std::string& tokenizer,
              const model::Configuration& configuration);

  const std::vector<std::string>& prompts() const { return prompts_; }
  // An answer for each prompt, from all weights of the model; the same ones from the same weights.
  std::vector<std::string> write(const runtime::ParameterStore& parameters, const Device& device) const;

 private:
  std::vector<std::int32_t> tokensOf(const std::string& prompt) const;

  std::vector<std::string> prompts_;
  std::int64_t tokens_;
  tokenizer::Tokenizer tokenizer_;
  const model::Configuration& configuration_;
};

}  // namespace tandem::train
