#pragma once
// Token datasets in HDF5: a corpus after the tokenizer, ready to be cut into training samples.
//
//   /tokens            uint16 (vocabulary of up to 65536) or uint32, all documents one after another
//   /document_offsets  uint64, n + 1 values: document i is tokens[offsets[i], offsets[i + 1])
//   /loss_mask         uint8, optional: 1 where a token may be a target of the loss
//   /tokenizer         the text of tokenizer.json
//   /chat_template     Jinja, optional: what conversations were written down by (tokenizer/chat_template.h)
//   attributes of the root: format = "tandem-dataset", version, tokenizer_hash, vocabulary_size, text_bytes, sources
//
// A file of ours may come from anywhere, so opening one checks all that is cheap to check (format, version, the form of
// the tokenizer's hash, offsets) and reading checks every token against the vocabulary. What is wrong is an Error of
// kind badData that names the file and the dataset in it.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/hdf5/hdf5.h"

namespace tandem::data {

constexpr std::int64_t datasetVersion = 1;

// What a dataset says of itself besides its tokens.
struct DatasetDescription {
  std::string tokenizer;      // tokenizer.json
  std::string tokenizerHash;  // XXH3-128 of what the tokenizer computes, as Tokenizer::hash gives it
  std::int64_t vocabularySize = 0;
  std::int64_t textBytes = 0;  // of the documents before they were encoded
  std::string sources = "[]";  // JSON: names, sizes and hashes of the files that the text came from
  std::string chatTemplate;    // Jinja; empty for text that is no conversation
  bool pairs = false;          // documents 2 i and 2 i + 1 are the chosen and the rejected one of a preference
};

// Whether a file is HDF5 with our format attribute; false for anything else, never an error for what it holds.
bool isDataset(const std::filesystem::path& path);

// Names to tell datasets apart by, in their order: those of the files, with as many folders in front as that takes.
// Throws Error of kind usage for one that is named twice.
std::vector<std::string> distinctNames(std::span<const std::string> paths);

// A dataset opened for reading. Not thread safe: one thread reads at a time.
class Dataset {
 public:
  explicit Dataset(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const DatasetDescription& description() const { return description_; }
  std::int64_t tokenCount() const { return tokenCount_; }
  std::int64_t documentCount() const { return static_cast<std::int64_t>(offsets_.size()) - 1; }
  // documentCount() + 1 rising values, the first 0, the last tokenCount().
  std::span<const std::int64_t> documentOffsets() const { return offsets_; }
  // The document that a token belongs to.
  std::int64_t documentOf(std::int64_t token) const;
  bool hasLossMask() const { return lossMask_.has_value(); }

  // Fills target with the tokens from `begin` on.
  void readTokens(std::int64_t begin, std::span<std::int32_t> target) const;
  void readLossMask(std::int64_t begin, std::span<std::uint8_t> target) const;

 private:
  void readDescription();
  void readOffsets();

  hdf5::File file_;
  DatasetDescription description_;
  std::optional<hdf5::Dataset> tokens_;
  std::optional<hdf5::Dataset> lossMask_;
  std::vector<std::int64_t> offsets_;
  std::int64_t tokenCount_ = 0;
  base::DType type_ = base::DType::u16;
  mutable std::vector<std::byte> scratch_;
};

// Whether ids mean the same text in a dataset and to a tokenizer (a tokenizer.json; `origin` names it in messages): it
// is the one that the dataset was encoded with, or has the same tokens, as one has that came back from GGUF, which does
// not keep all else. Throws Error of kind badData for a text that is no tokenizer.
bool meansTheSame(const Dataset& dataset, const std::string& json, const std::string& origin);

// Writes a dataset. It grows under the name PATH.partial and gets its own name in finish(), when it is complete and
// synced; a writer destroyed before that removes what it wrote.
class DatasetWriter {
 public:
  DatasetWriter(std::filesystem::path path, std::int64_t vocabularySize, bool withLossMask = false);
  ~DatasetWriter();
  DatasetWriter(const DatasetWriter&) = delete;
  DatasetWriter& operator=(const DatasetWriter&) = delete;

  // The tokens appended next belong to a new document.
  void beginDocument();
  // Appends to the document begun last. The mask has a value a token, and is empty in a dataset without one.
  void append(std::span<const std::uint32_t> tokens, std::span<const std::uint8_t> lossMask = {});

  std::int64_t tokenCount() const { return tokenCount_; }
  std::int64_t documentCount() const { return documentCount_; }

  void finish(const DatasetDescription& description);

 private:
  class Column;

  std::filesystem::path path_;
  std::filesystem::path partial_;
  std::optional<hdf5::File> file_;
  std::int64_t vocabularySize_;
  std::int64_t tokenCount_ = 0;
  std::int64_t documentCount_ = 0;
  std::unique_ptr<Column> tokens_;
  std::unique_ptr<Column> offsets_;
  std::unique_ptr<Column> lossMask_;
};

}  // namespace tandem::data
