#pragma once
// A tiny model, a tokenizer of bytes and a dataset, for tests on several ranks.

#include <memory>
#include <string>
#include <vector>

#include "common/data/dataset.h"
#include "common/model/configuration.h"
#include "common/tokenizer/tokenizer_json.h"
#include "common/train/training_step.h"
#include "tests/common/data/temporary_folder.h"
#include "tests/mpi_test.h"

namespace tandem::train {

constexpr std::int64_t endOfText = 256;
constexpr std::int64_t vocabulary = 257;

// The 256 bytes, and one special token.
inline std::string byteTokenizer() {
  tokenizer::Definition definition;
  for (int byte = 0; byte < 256; ++byte)
    definition.tokens.push_back({.bytes = std::string(1, static_cast<char>(byte))});
  definition.tokens.push_back({.bytes = "<|endoftext|>", .literal = true});
  definition.addedTokens.push_back({.id = endOfText});
  return tokenizer::writeTokenizerJson(definition);
}

inline model::Configuration tinyModel() {
  return model::parseConfiguration(R"({"model_type": "llama", "vocab_size": 260, "hidden_size": 16,
    "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24, "max_position_embeddings": 64})",
                                   "of the test");
}

// Documents of these texts between end-of-text tokens, in a file of this rank's own.
inline std::filesystem::path makeTextDataset(const data::TemporaryFolder& folder, const std::vector<std::string>& texts,
                                             std::int64_t size = vocabulary) {
  const std::filesystem::path path = folder.path() / "data.h5";
  data::DatasetWriter writer(path, size);
  std::int64_t bytes = 0;
  for (const std::string& text : texts) {
    std::vector<std::uint32_t> tokens = {static_cast<std::uint32_t>(endOfText)};
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    tokens.push_back(static_cast<std::uint32_t>(endOfText));
    writer.beginDocument();
    writer.append(tokens);
    bytes += static_cast<std::int64_t>(text.size());
  }
  writer.finish({.tokenizer = byteTokenizer(),
                 .tokenizerHash = std::string(32, 'a'),
                 .vocabularySize = size,
                 .textBytes = bytes});
  return path;
}

struct CpuDevice {
  std::unique_ptr<kernels::Backend> backend = kernels::makeCpuBackend({.threads = 1});
  std::unique_ptr<kernels::Stream> stream = backend->makeStream();
  std::shared_ptr<runtime::Arena> arena = std::make_shared<runtime::Arena>(*backend);

  Device device() const { return {*backend, *stream, arena}; }
};

}  // namespace tandem::train
