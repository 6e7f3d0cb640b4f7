#pragma once
// A Hugging Face folder: config.json, tokenizer.json, the texts beside them, and the weights as safetensors, in one
// file or in several with an index.

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "common/checkpoint/encoding.h"
#include "common/checkpoint/model_source.h"
#include "common/checkpoint/tensor_file.h"

namespace tandem::checkpoint {

inline constexpr const char* configurationName = "config.json";
inline constexpr const char* tokenizerName = "tokenizer.json";
inline constexpr const char* safetensorsName = "model.safetensors";
inline constexpr const char* safetensorsIndexName = "model.safetensors.index.json";

// Texts that are kept as they are: Metadata::companions is a JSON object of those that are there.
inline constexpr std::array<const char*, 5> companionNames = {"generation_config.json", "tokenizer_config.json",
                                                              "special_tokens_map.json", "chat_template.jinja",
                                                              "added_tokens.json"};

// The files of the weights, all tensors of the index found in theirs. Kind badData otherwise, or when there are none.
std::vector<std::unique_ptr<TensorFile>> openWeights(const std::filesystem::path& folder);

struct HuggingFaceOptions {
  std::optional<Encoding> type;              // of all weights; nothing: as they are stored
  std::int64_t largestFile = 5'000'000'000;  // bytes of weights in a file, unless one tensor has more
};

// Writes a model into a folder, the same bytes at any rank count, tensor by tensor; ranks share the tensors. Files have
// their names once they are complete. What a model of ours lacks is made: architectures, the tokenizer's configuration.
// An imported model's texts are written as they came. Collective.
void writeHuggingFace(const ModelSource& model, const std::filesystem::path& folder, const HuggingFaceOptions& options,
                      comm::Communicator& communicator);

}  // namespace tandem::checkpoint
