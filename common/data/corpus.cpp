#include "common/data/corpus.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "common/base/error.h"
#include "common/base/hash.h"
#include "common/base/json.h"
#include "common/base/random.h"
#include "common/data/conversation.h"
#include "common/data/dataset.h"
#include "common/data/detail/ordered_pipeline.h"
#include "common/data/detail/part.h"
#include "common/tokenizer/encoder.h"

namespace tandem::data {
namespace {

using base::Error;
using base::ErrorKind;
using comm::Communicator;
using tokenizer::TokenId;
using tokenizer::Tokenizer;

// Reads a rank's ranges block by block and says how far it is.
class Input {
 public:
  Input(Communicator& communicator, std::span<const TextFile> files, const TextOptions& text,
        const CorpusProgress& progress)
      : ranges_(shareOut(files, text, communicator.rank(), communicator.size())),
        reader_(files, ranges_, text),
        progress_(progress) {
    for (const FileRange& range : ranges_) total_ += range.end - range.begin;
  }

  std::optional<TextBlock> next() {
    std::optional<TextBlock> block = reader_.next();
    if (block) done_ += static_cast<std::int64_t>(block->bytes.size());
    if (progress_) progress_(done_, total_);
    return block;
  }
  std::int64_t total() const { return total_; }
  const InputReport& report() const { return reader_.report(); }

 private:
  std::vector<FileRange> ranges_;
  BlockReader reader_;
  const CorpusProgress& progress_;
  std::int64_t done_ = 0;
  std::int64_t total_ = 0;
};

template <class Produce, class Work, class Consume>
void runOrdered(Produce produce, Work work, Consume consume, int threads) {
  detail::OrderedPipeline<Produce, Work, Consume>(produce, work, consume, threads).run();
}

void sumReports(Communicator& communicator, InputReport& report) {
  for (std::int64_t* count : {&report.badRecords, &report.emptyDocuments, &report.invalidUtf8}) {
    *count = comm::allReduceScalar(communicator, *count);
  }
  const std::vector<std::string> firsts = comm::allGatherTexts(communicator, report.firstBadRecord);
  const auto first = std::ranges::find_if(firsts, [](const std::string& text) { return !text.empty(); });
  report.firstBadRecord = first == firsts.end() ? "" : *first;
}

[[noreturn]] void noDocuments(const InputReport& report) {
  std::string message = "the input holds no text: no document with at least one byte";
  if (report.badRecords > 0) {
    message +=
        "; " + std::to_string(report.badRecords) + " bad records were skipped, the first: " + report.firstBadRecord;
  }
  throw Error(ErrorKind::badData, message);
}

[[noreturn]] void uselessShare(const EncodeSettings& settings, std::int64_t training, std::int64_t validation) {
  throw Error(ErrorKind::badData, "with a validation share of " + std::to_string(settings.validationFraction) + ", " +
                                      std::to_string(training) + " documents are for training and " +
                                      std::to_string(validation) +
                                      " for validation; both need one: change the share or the seed, or part the text "
                                      "into more documents");
}

// ---- counting

struct BlockCount {
  std::int64_t documents = 0;
  std::int64_t textBytes = 0;
  InputReport report;
};

// Serialised counts of every rank, merged on rank 0 in the order of the ranks.
void gatherCounts(Communicator& communicator, tokenizer::WordCounts& counts) {
  constexpr int tag = 1;
  if (communicator.rank() != 0) {
    std::string bytes = counts.serialize();
    counts = {};
    auto size = static_cast<std::int64_t>(bytes.size());
    communicator.send({&size, base::DType::i64, 1}, 0, tag);
    communicator.send({bytes.data(), base::DType::u8, size}, 0, tag);
    return;
  }
  for (int rank = 1; rank < communicator.size(); ++rank) {
    std::int64_t size = 0;
    communicator.receive({&size, base::DType::i64, 1}, rank, tag);
    std::string bytes(static_cast<std::size_t>(size), '\0');
    communicator.receive({bytes.data(), base::DType::u8, size}, rank, tag);
    counts.merge(tokenizer::WordCounts::deserialize(bytes));
  }
}

// ---- encoding

struct EncodedDocument {
  std::size_t tokenBegin = 0;  // in the block's tokens
  std::int64_t textBytes = 0;
  bool starts = true;
  bool validation = false;
};

struct EncodedBlock {
  std::vector<TokenId> tokens;
  std::vector<EncodedDocument> documents;
  InputReport report;
};

// Whether a document is held out: a pure function of the seed and of its identity.
bool isHeldOut(const EncodeSettings& settings, const Document& document) {
  if (settings.validationFraction <= 0) return false;
  constexpr std::uint64_t purpose = std::uint64_t{0x76616c69} << 32;  // "vali"
  const auto words = base::philox(settings.seed, static_cast<std::uint64_t>(document.begin),
                                  purpose | static_cast<std::uint64_t>(document.file));
  const double uniform = (static_cast<double>(words[0]) + static_cast<double>(words[1]) * 0x1p-32) * 0x1p-32;
  return uniform < settings.validationFraction;
}

// A rank's worker: what encodes a document.
struct Worker {
  tokenizer::Encoder text;
  std::optional<tokenizer::ChatEncoder> chat;
};

void addText(tokenizer::Encoder& encoder, const Document& document, const EncodeSettings& settings,
             std::vector<TokenId>& tokens) {
  const Tokenizer& tokenizer = encoder.tokenizer();
  if (document.starts && settings.addBegin && tokenizer.beginToken()) tokens.push_back(*tokenizer.beginToken());
  encoder.encode(document.text, tokens, {.parseSpecial = settings.parseSpecial});
  if (document.ends && settings.addEnd && tokenizer.endToken()) tokens.push_back(*tokenizer.endToken());
}

// The tokens of turns, those that are to be learned marked by detail::targetBit.
void addTurns(const tokenizer::EncodedChat& encoded, std::vector<TokenId>& tokens) {
  for (std::size_t i = 0; i < encoded.tokens.size(); ++i) {
    tokens.push_back(encoded.answers[i] != 0 ? encoded.tokens[i] | detail::targetBit : encoded.tokens[i]);
  }
}

// The same of a record.
void addConversation(Worker& worker, const Document& document, const EncodeSettings& settings,
                     std::vector<TokenId>& tokens) {
  const Conversation conversation = parseConversation(document.text);
  if (conversation.messages.empty()) {
    const std::size_t before = tokens.size();
    addText(worker.text, {.text = conversation.text}, settings, tokens);
    for (std::size_t i = before; i < tokens.size(); ++i) tokens[i] |= detail::targetBit;
    return;
  }
  addTurns(worker.chat->encode(conversation.messages, false), tokens);
}

// Two documents, whose text is counted once.
void addPair(Worker& worker, const Document& document, const EncodeSettings& settings, EncodedBlock& result) {
  const Preference pair = parsePreference(document.text);
  const tokenizer::EncodedChat chosen = worker.chat->encode(pair.chosen, false);
  const tokenizer::EncodedChat rejected = worker.chat->encode(pair.rejected, false);
  const bool validation = isHeldOut(settings, document);
  const auto add = [&](const tokenizer::EncodedChat& encoded, std::size_t textBytes) {
    result.documents.push_back({.tokenBegin = result.tokens.size(),
                                .textBytes = static_cast<std::int64_t>(textBytes),
                                .validation = validation});
    addTurns(encoded, result.tokens);
  };
  add(chosen, document.text.size());
  add(rejected, 0);
}

EncodedBlock encodeBlock(Worker& worker, const TextBlock& block, const TextFile& file, const TextOptions& text,
                         const EncodeSettings& settings) {
  EncodedBlock result;
  result.tokens.reserve(block.bytes.size() / 3);
  result.report = forEachDocument(block, file, text, [&](const Document& document) {
    if (settings.pairs) return addPair(worker, document, settings, result);
    const std::size_t tokenBegin = result.tokens.size();
    if (worker.chat) {
      addConversation(worker, document, settings, result.tokens);
    } else {
      try {
        addText(worker.text, document, settings, result.tokens);
      } catch (const Error& error) {
        throw Error(error.kind(), "'" + file.path.string() + "', the document at byte " +
                                      std::to_string(document.begin) + ": " + error.message());
      }
    }
    result.documents.push_back({.tokenBegin = tokenBegin,
                                .textBytes = static_cast<std::int64_t>(document.text.size()),
                                .starts = document.starts,
                                .validation = isHeldOut(settings, document)});
  });
  return result;
}

// The datasets under construction, and what went into them.
struct Outputs {
  detail::Part training;
  std::optional<detail::Part> validation;

  void take(const EncodedBlock& block) {
    for (std::size_t i = 0; i < block.documents.size(); ++i) {
      const EncodedDocument& document = block.documents[i];
      const std::size_t end = i + 1 < block.documents.size() ? block.documents[i + 1].tokenBegin : block.tokens.size();
      detail::Part& part = document.validation ? *validation : training;
      part.add(document.starts, std::span(block.tokens).subspan(document.tokenBegin, end - document.tokenBegin),
               document.textBytes);
    }
  }
};

// Names, sizes and hashes of the files, each hashed by one rank. Names that are no UTF-8 are shown with replacements.
std::string describeSources(Communicator& communicator, std::span<const TextFile> files) {
  std::string mine;
  comm::agreeOn(communicator, [&] {
    for (std::size_t f = static_cast<std::size_t>(communicator.rank()); f < files.size();
         f += static_cast<std::size_t>(communicator.size())) {
      mine += base::hashFile(files[f].path);
    }
  });
  const std::vector<std::string> hashes = comm::allGatherTexts(communicator, mine);
  constexpr std::size_t hashLength = 32;
  nlohmann::json list = nlohmann::json::array();
  for (std::size_t f = 0; f < files.size(); ++f) {
    const std::size_t rank = f % hashes.size();
    list.push_back({{"name", files[f].path.string()},
                    {"bytes", files[f].bytes},
                    {"hash", hashes[rank].substr(f / hashes.size() * hashLength, hashLength)}});
  }
  return base::lenientJsonText(list);
}

// Added tokens that are looked for in the text could lie across a cut; those without a blank can't.
bool cutsAreSafe(const Tokenizer& tokenizer, const EncodeSettings& settings) {
  const tokenizer::Definition& definition = tokenizer.definition();
  return std::ranges::none_of(definition.addedTokens, [&](const tokenizer::AddedToken& added) {
    const bool isLookedFor = !added.special || settings.parseSpecial;
    return isLookedFor && definition.tokens[added.id].bytes.find_first_of(" \n") != std::string::npos;
  });
}

void encodeOwnPart(Input& input, std::span<const TextFile> files, const TextOptions& text,
                   const EncodeSettings& settings, const Tokenizer& tokenizer, Outputs& outputs, InputReport& report) {
  std::vector<Worker> workers;
  const std::int64_t share = input.total() / settings.threads + 1;
  for (int thread = 0; thread < settings.threads; ++thread) {
    workers.push_back({.text = tokenizer::Encoder(tokenizer, share), .chat = {}});
    if (settings.chat) workers.back().chat.emplace(*settings.chat, tokenizer);
  }
  runOrdered([&] { return input.next(); },
             [&](std::size_t worker, TextBlock block) {
               return encodeBlock(workers[worker], block, files[static_cast<std::size_t>(block.file)], text, settings);
             },
             [&](EncodedBlock block) {
               outputs.take(block);
               report.add(block.report);
             },
             settings.threads);
  report.add(input.report());
}

void refuseOtherFormats(std::span<const TextFile> files) {
  for (const TextFile& file : files) {
    if (file.format == TextFormat::jsonLines) continue;
    throw Error(ErrorKind::usage,
                "'" + file.path.string() + "' is no .jsonl file, and conversations are read from these");
  }
}

}  // namespace

CorpusCount countCorpus(Communicator& communicator, std::span<const TextFile> files, const TextOptions& text,
                        tokenizer::Pattern pattern, bool normalizesToC, int threads, const CorpusProgress& progress) {
  CorpusCount result;
  comm::agreeOn(communicator, [&] {
    Input input(communicator, files, text, progress);
    std::vector<tokenizer::WordCounts> counts(static_cast<std::size_t>(threads));
    runOrdered([&] { return input.next(); },
               [&](std::size_t worker, TextBlock block) {
                 BlockCount count;
                 const TextFile& file = files[static_cast<std::size_t>(block.file)];
                 count.report = forEachDocument(block, file, text, [&](const Document& document) {
                   counts[worker].addText(document.text, pattern, normalizesToC);
                   count.documents += document.starts;
                   count.textBytes += static_cast<std::int64_t>(document.text.size());
                 });
                 return count;
               },
               [&](const BlockCount& count) {
                 result.documents += count.documents;
                 result.textBytes += count.textBytes;
                 result.report.add(count.report);
               },
               threads);
    result.report.add(input.report());
    for (const tokenizer::WordCounts& part : counts) result.words.merge(part);
  });
  sumReports(communicator, result.report);
  result.documents = comm::allReduceScalar(communicator, result.documents);
  result.textBytes = comm::allReduceScalar(communicator, result.textBytes);
  comm::agreeOn(communicator, [&] {
    if (result.documents == 0) noDocuments(result.report);
  });
  gatherCounts(communicator, result.words);
  return result;
}

EncodeSummary encodeCorpus(Communicator& communicator, const Tokenizer& tokenizer, std::span<const TextFile> files,
                           const TextOptions& textOptions, const EncodeSettings& settings,
                           const CorpusProgress& progress) {
  TextOptions text = textOptions;
  text.mayCutDocuments = text.mayCutDocuments && cutsAreSafe(tokenizer, settings);
  text.wholeRecords = settings.chat.has_value();
  std::optional<Outputs> outputs;
  EncodeSummary summary;
  comm::agreeOn(communicator, [&] {
    if (settings.chat) refuseOtherFormats(files);
    outputs.emplace(
        detail::Part(communicator.rank(), settings.output, tokenizer.vocabularySize(), settings.chat.has_value()));
    if (settings.validationOutput) {
      outputs->validation.emplace(communicator.rank(), *settings.validationOutput, tokenizer.vocabularySize(),
                                  settings.chat.has_value());
    }
    Input input(communicator, files, text, progress);
    encodeOwnPart(input, files, text, settings, tokenizer, *outputs, summary.report);
  });
  sumReports(communicator, summary.report);
  const std::string sources = describeSources(communicator, files);
  const detail::PartTotals training = outputs->training.collect(communicator);
  detail::PartTotals validation;
  if (outputs->validation) validation = outputs->validation->collect(communicator);

  comm::agreeOn(communicator, [&] {
    if (training.documents + validation.documents == 0) noDocuments(summary.report);
    const bool oneIsEmpty = training.documents == 0 || (outputs->validation && validation.documents == 0);
    if (oneIsEmpty) uselessShare(settings, training.documents, validation.documents);
  });
  DatasetDescription description{.tokenizer = tokenizer.json(),
                                 .tokenizerHash = tokenizer.hash(),
                                 .vocabularySize = tokenizer.vocabularySize(),
                                 .textBytes = training.textBytes,
                                 .sources = sources,
                                 .chatTemplate = settings.chat ? settings.chat->jinja() : "",
                                 .pairs = settings.pairs};
  comm::agreeOn(communicator, [&] {
    if (outputs->validation) {
      DatasetDescription other = description;
      other.textBytes = validation.textBytes;
      outputs->validation->finish(other);
    }
    outputs->training.finish(description);
  });
  summary.documents = training.documents + validation.documents;
  summary.tokens = training.tokens + validation.tokens;
  summary.validationDocuments = validation.documents;
  summary.validationTokens = validation.tokens;
  summary.textBytes = training.textBytes + validation.textBytes;
  return summary;
}

}  // namespace tandem::data
