#pragma once
// Which tensors of other people's files make up our parameters, family by family.
//
// Ours are fused and laid out as they are computed with: queries, keys and values are the rows of one matrix, gate and
// up of another, and a head's rotary pairs are (i, i + headSize / 2). Elsewhere they lie in tensors of their own, and
//   - Hugging Face has the same pairs; GPT-2's matrices are [inputs, outputs] there (its Conv1D), so transposed;
//   - GGUF pairs (2i, 2i + 1) in models of architecture llama, whose rows of queries and keys are therefore interleaved
//     head by head; qwen2, qwen3 and gpt2 have our order, and no matrix is transposed.
// So a parameter is a sequence of parts, each a tensor of theirs that gives it a run of rows.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/shape.h"
#include "common/model/configuration.h"

namespace tandem::checkpoint {

enum class Arrangement {
  same,         // row by row as ours
  transposed,   // theirs is [inputs, outputs]
  interleaved,  // in each head, their rows 2i and 2i + 1 are our rows i and i + headSize / 2
};

struct Part {
  std::string name;   // of their tensor
  base::Shape shape;  // of their tensor
  Arrangement arrangement = Arrangement::same;
  std::int64_t firstRow = 0;  // of our parameter; a vector is a column of rows of one element
  std::int64_t rows = 0;
  std::int64_t headSize = 0;  // of interleaved rows
};

struct Parameter {
  std::string name;
  base::Shape shape;
  std::vector<Part> parts;  // by their rows, covering each once
  std::int64_t rowElements() const { return shape.rank() > 1 ? shape.last() : 1; }
};

// The parameters of a model under our names, in the order of their use, as if each came from a tensor of its own.
std::vector<Parameter> ourLayout(const model::Configuration& configuration);

// The same made up of tensors of a Hugging Face folder, or of a GGUF file.
std::vector<Parameter> huggingFaceLayout(const model::Configuration& configuration);
std::vector<Parameter> ggufLayout(const model::Configuration& configuration);

// Where our row of a part lies in their tensor, and the inverse, both counted from the part's first.
std::int64_t theirRow(const Part& part, std::int64_t row);
std::int64_t ourRow(const Part& part, std::int64_t row);

// Whether a tensor that makes up no parameter says nothing: buffers that old files hold, a head that is the embedding.
bool isRedundant(const model::Configuration& configuration, std::string_view theirName);

}  // namespace tandem::checkpoint
