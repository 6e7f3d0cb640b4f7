#pragma once
// Where text comes from: the files that the --input arguments stand for, and how they are shared out over ranks.
//
//   .txt            one document a file, or several, parted by a separator
//   .jsonl          one JSON object a line, the text under a key
//   .txt.gz .jsonl.zst ...  each compressed; several members or frames one after another are one text
//
// An argument is a file, a folder (its files of these kinds, recursively, in the order of their paths; names that start
// with a dot are left out, links to folders aren't followed) or a pattern with * ? [ ].
//
// Documents are numbered by (file, byte offset), so their order, and everything derived from their identity, is the
// same however many ranks read them.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/comm/communicator.h"

namespace tandem::data {

enum class TextFormat { plain, jsonLines };
enum class Compression { none, gzip, zstd };

struct TextFile {
  std::filesystem::path path;
  TextFormat format = TextFormat::plain;
  Compression compression = Compression::none;
  std::int64_t bytes = 0;  // as stored
};

// The files that the arguments stand for. Throws Error of kind usage for a path that does not exist, a pattern that
// nothing matches or a file of another kind, of kind badData for a folder without any text.
std::vector<TextFile> findTextFiles(std::span<const std::string> arguments);

// The same, looked up by rank 0 alone, so that all ranks have one list. Collective.
std::vector<TextFile> findTextFiles(comm::Communicator& communicator, std::span<const std::string> arguments);

// How the bytes of the files become documents.
struct TextOptions {
  std::string textKey = "text";
  bool wholeRecords = false;  // of .jsonl: a document is the record as it stands, for its reader to understand
  std::optional<std::string> documentSeparator;  // of .txt files; not part of any document
  // A record that can't be read (malformed JSON, no string under the key, a compressed file that breaks off) is left
  // out and counted; otherwise it is an Error of kind badData with its file and line.
  bool skipBadRecords = false;
  // Whether a long .txt document may be handed out in parts, cut where no tokenizer's pattern looks across.
  bool mayCutDocuments = true;
};

// A part of a file. The limits are where to start looking for the next boundary of records: a range holds the records
// between the first boundary at or after `begin` and the first at or after `end`. Compressed files are never cut.
struct FileRange {
  std::int64_t file = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// The ranges that rank `rank` of `ranks` reads, in the order of the documents: about as many bytes on every rank, and
// all ranks' ranges one after another are all files.
std::vector<FileRange> shareOut(std::span<const TextFile> files, const TextOptions& options, int rank, int ranks);

}  // namespace tandem::data
