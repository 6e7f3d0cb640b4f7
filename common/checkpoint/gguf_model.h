#pragma once
// A model as one GGUF file: how its keys and our configuration, its tokenizer and a tokenizer.json become one another.

#include <filesystem>
#include <optional>

#include "common/checkpoint/encoding.h"
#include "common/checkpoint/model_source.h"

namespace tandem::checkpoint {

struct GgufOptions {
  // Of matrices; nothing: as they are stored. Under Q4_0 the embedding and the head, on which the quality depends most,
  // are Q8_0. Vectors are float32, since llama.cpp computes with these only.
  std::optional<Encoding> type;
};

// Writes a model into a file that llama.cpp answers from, tokenizer and chat template included; the same bytes at any
// rank count. The file has its name once it is complete. Throws Error of kind badData for a matrix whose rows are no
// whole blocks of the type. Collective.
void writeGguf(const ModelSource& model, const std::filesystem::path& file, const GgufOptions& options,
               comm::Communicator& communicator);

}  // namespace tandem::checkpoint
