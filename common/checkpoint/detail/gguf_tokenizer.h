#pragma once
// The tokenizer in a GGUF file: byte-level BPE is there as a tokenizer.json has it, as lists of tokens, their kinds and
// merges, and a name for the way that text is cut into words.

#include <string>

#include "common/checkpoint/gguf.h"
#include "common/checkpoint/model_source.h"

namespace tandem::checkpoint::detail {

// The tokenizer.json; empty, with a warning, for a tokenizer of another kind or with words cut in a way that we do not
// have. Throws Error of kind badData where it does not fit together.
std::string tokenizerOf(const GgufFile& file);

// The texts that a Hugging Face folder would have beside it (Metadata::companions).
std::string companionsOf(const GgufFile& file);

// The inverse of both. Without a tokenizer that we read, the file has none, with a warning.
void addTokenizer(GgufPairs& pairs, const ModelSource& model);

}  // namespace tandem::checkpoint::detail
