#pragma once
// The logits of a model after every token of a text, and how far two such agree.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/checkpoint/model_source.h"
#include "common/runtime/executable.h"
#include "common/runtime/parameter_store.h"
#include "common/train/device.h"

namespace tandem::train {

// Computes in float32, over a KV cache, a block of positions at a time: the whole is never in memory.
class TextLogits {
 public:
  static constexpr std::int64_t blockRows = 128;

  // Reads the model. At most `tokens` tokens will be given.
  TextLogits(const checkpoint::ModelSource& model, std::int64_t tokens, const Device& device);

  std::int64_t vocabularySize() const { return configuration_.vocabularySize; }
  // The logits [tokens, vocabulary] of the next tokens of the text, up to blockRows; valid until the next call.
  std::span<const float> next(std::span<const std::int32_t> tokens);

 private:
  model::Configuration configuration_;
  std::unique_ptr<runtime::ParameterStore> parameters_;
  std::unique_ptr<runtime::DeviceMemory> caches_;
  std::unique_ptr<runtime::Executable> body_;
  std::unique_ptr<runtime::Executable> head_;
  std::int32_t done_ = 0;
  std::vector<float> hidden_;
  std::vector<float> logits_;
};

// The probabilities that two rows of logits give, compared in float64.
struct LogitsAgreement {
  std::int64_t tokens = 0;
  double largestDifference = 0;    // of any logit
  double meanDivergence = 0;       // Kullback-Leibler of the first from the second, in nats, mean over the tokens
  double largestDivergence = 0;    // of a token
  std::int64_t sameLikeliest = 0;  // tokens whose likeliest successor is the same

  // Rows of `vocabulary` logits each.
  void add(std::span<const float> first, std::span<const float> second, std::int64_t vocabulary);
};

// Both models on the same tokens. Throws Error of kind badData when their vocabularies differ in size, or a token is in
// none.
LogitsAgreement compareLogits(const checkpoint::ModelSource& first, const checkpoint::ModelSource& second,
                              std::span<const std::int32_t> tokens, const Device& device);

// A model against what another program computed: an HDF5 file with /tokens int32 [n] and /logits float32 [n,
// vocabulary].
LogitsAgreement compareLogits(const checkpoint::ModelSource& model, const std::string& file, const Device& device);

}  // namespace tandem::train
