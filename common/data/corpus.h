#pragma once
// A whole corpus through the tokenizer, by all ranks and their threads: counted for training one, or encoded to
// datasets.
//
// The files are shared out over ranks by size (text_source.h). What comes out depends on neither ranks nor threads: the
// parts are put together in the order of the documents, and whether a document is held out for validation follows from
// the seed and its place in its file. Other ranks than 0 keep their part in a file without a name next to the output
// and hand it to rank 0, which alone writes the datasets, straight to their end; so a run that is killed leaves nothing
// but a file named OUTPUT.partial.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/comm/communicator.h"
#include "common/data/block_reader.h"
#include "common/data/text_source.h"
#include "common/tokenizer/chat_template.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/word_counts.h"

namespace tandem::data {

// Called by each rank with the bytes that it has read of its part, as stored in memory, and how many it will be (an
// estimate for compressed files).
using CorpusProgress = std::function<void(std::int64_t done, std::int64_t total)>;

struct CorpusCount {
  tokenizer::WordCounts words;  // on rank 0; empty elsewhere
  std::int64_t documents = 0;   // this and the following: of all ranks, on every rank
  std::int64_t textBytes = 0;
  InputReport report;
};

// Counts the words of all documents. Throws Error of kind badData if there are none. Collective.
CorpusCount countCorpus(comm::Communicator& communicator, std::span<const TextFile> files, const TextOptions& text,
                        tokenizer::Pattern pattern, bool normalizesToC, int threads, const CorpusProgress& progress);

struct EncodeSettings {
  std::filesystem::path output;
  // A share of the documents goes to a dataset of its own. Both or none.
  double validationFraction = 0;
  std::optional<std::filesystem::path> validationOutput;
  std::uint64_t seed = 0;
  bool addBegin = true;  // where the tokenizer has such a token
  bool addEnd = true;
  bool parseSpecial = false;
  // Records are conversations (conversation.h), written down by this template; the datasets get a loss mask on what the
  // assistant says, and remember the template. The three settings above then hold for records that are plain text.
  std::optional<tokenizer::ChatTemplate> chat;
  bool pairs = false;  // of `chat`: records are preferences, each of which becomes two documents: first the chosen one
  int threads = 1;
};

// Of all ranks, the same on every rank.
struct EncodeSummary {
  std::int64_t documents = 0;  // the validation's included
  std::int64_t tokens = 0;
  std::int64_t validationDocuments = 0;
  std::int64_t validationTokens = 0;
  std::int64_t textBytes = 0;
  InputReport report;
};

// Writes the dataset, or both. Throws Error of kind badData if one of them would be empty. Collective.
EncodeSummary encodeCorpus(comm::Communicator& communicator, const tokenizer::Tokenizer& tokenizer,
                           std::span<const TextFile> files, const TextOptions& text, const EncodeSettings& settings,
                           const CorpusProgress& progress);

}  // namespace tandem::data
