#pragma once
// Reads ranges of text files block by block, and cuts blocks into documents.
//
// Reading is sequential and cheap; the documents of a block can be taken out (JSON parsed, UTF-8 checked) by any
// thread. A block is about a MiB of whole records, more where one record is longer, so memory stays bounded by the
// longest record, and for .txt files that may be cut, by the block.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/data/text_source.h"

namespace tandem::data {

struct TextBlock {
  std::int64_t file = 0;
  std::int64_t begin = 0;  // offset of the first byte in the (decompressed) file
  std::string bytes;
  // Both true but for a part of a document that was cut.
  bool startsDocument = true;
  bool endsDocument = true;
};

// What was odd about the input, for the summary.
struct InputReport {
  std::int64_t badRecords = 0;
  std::int64_t emptyDocuments = 0;  // left out: there is nothing to learn from them
  std::int64_t invalidUtf8 = 0;     // ill-formed sequences, kept as bytes
  std::string firstBadRecord;       // file, line and reason

  void add(const InputReport& other);
};

class BlockReader {
 public:
  BlockReader(std::span<const TextFile> files, std::vector<FileRange> ranges, const TextOptions& options);
  ~BlockReader();

  // The next block, or nothing at the end. Throws Error of kind badData for a broken compressed file, unless bad
  // records are skipped; of kind file when reading fails.
  std::optional<TextBlock> next();

  // Compressed files that broke off and were skipped from there on.
  const InputReport& report() const { return report_; }

 private:
  struct Current;

  bool openNext();
  void fill(std::size_t wanted);
  TextBlock take(std::size_t count);
  std::size_t endOfRecords(std::size_t& scanned) const;

  std::span<const TextFile> files_;
  std::vector<FileRange> ranges_;
  const TextOptions options_;
  std::size_t nextRange_ = 0;
  std::unique_ptr<Current> current_;
  InputReport report_;
};

struct Document {
  std::string_view text;
  std::int64_t file = 0;
  std::int64_t begin = 0;  // offset of its record in the file: with the file, its identity
  bool starts = true;      // false: the text continues the document before
  bool ends = true;
};

// Calls visit for each document of a block. Thread safe for different blocks. Throws Error of kind badData for a bad
// record, unless bad records are skipped. Of whole records visit decides: what it throws of that kind makes a bad one.
InputReport forEachDocument(const TextBlock& block, const TextFile& file, const TextOptions& options,
                            const std::function<void(const Document&)>& visit);

}  // namespace tandem::data
