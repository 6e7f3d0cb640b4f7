#pragma once
// What a model is: the numbers and switches of a decoder-only transformer, read from and written as a Hugging Face
// config.json (model_type gpt2, llama, mistral, qwen2 or qwen3).

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace tandem::model {

struct Configuration {
  std::string type;  // Hugging Face's model_type
  std::int64_t vocabularySize = 0;
  std::int64_t width = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t kvHeads = 0;
  std::int64_t headSize = 0;
  std::int64_t mlpWidth = 0;
  std::int64_t maximumPositions = 0;
  std::int64_t slidingWindow = 0;  // 0: none
  kernels::NormKind norm = kernels::NormKind::rms;
  float normEpsilon = 1e-5f;
  kernels::ActivationKind activation = kernels::ActivationKind::swiglu;
  bool learnedPositions = false;  // else rotary
  bool qkvBias = false;
  bool outputBias = false;  // of the attention's output projection
  bool mlpBias = false;
  bool queryKeyNorm = false;
  bool tiedEmbeddings = false;
  float initializerRange = 0.02f;
  std::vector<float> rotaryFrequencies;  // [headSize / 2], scaling included; empty with learned positions
  double rotaryBase = 10000;             // of the frequencies before scaling: base^(-2i / headSize)

  kernels::HeadLayout headLayout() const { return {.heads = heads, .kvHeads = kvHeads, .headSize = headSize}; }
  bool gatedMlp() const { return activation == kernels::ActivationKind::swiglu; }

  // What scaling divides each frequency by: ones without it. Empty with learned positions.
  std::vector<double> rotaryFactors() const;

  std::string json;  // the text it was read from
};

// Throws Error of kind usage, naming the origin, the field and what is allowed: a field is missing, has a value out of
// range, asks for something we do not have, or is unknown (a typing error must not train for two days).
Configuration parseConfiguration(const std::string& json, const std::string& origin);

// Reads a file; kind file when that fails.
Configuration readConfiguration(const std::string& path);

}  // namespace tandem::model
