#pragma once
// Training a byte-level BPE vocabulary: count words (word_counts.h), then join the most frequent pair of tokens, again
// and again.
//
// The same merges at any number of ranks and threads: they follow from the counts alone. Of pairs that are equally
// frequent the one with the smaller left id is joined first, then the one with the smaller right id. Ids are given in
// this order: the 256 bytes by value, the joined tokens as they are found, the special tokens. When two different pairs
// join to the same bytes, the second becomes another merge of the same token.
//
// Over ranks: each rank counts its documents, one rank merges their serialised counts and learns, the others take its
// tokenizer.json.

#include <cstdint>
#include <string>
#include <vector>

#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/word_counts.h"

namespace tandem::tokenizer {

struct TrainOptions {
  std::int64_t vocabularySize = 0;  // all tokens: bytes, joined and special ones
  Pattern pattern = Pattern::o200k;
  std::vector<std::string> specialTokens = {"<|endoftext|>"};
  bool normalizesToC = false;
  // Pairs that come less often are not joined.
  std::int64_t minimumCount = 2;
};

// The vocabulary comes out smaller than asked for if no pair is frequent enough any more: compare vocabularySize().
// Throws Error of kind usage if the size has no room for the bytes and the special tokens or a special token is there
// twice or empty, and of kind badData if there are no words.
Tokenizer learnMerges(const WordCounts& counts, const TrainOptions& options);

// Counts with this many threads and learns.
Tokenizer trainBpe(const DocumentSource& source, const TrainOptions& options, int threads);

}  // namespace tandem::tokenizer
