#pragma once
// Where the records of a file may be parted: a pure function of its bytes, so that any two readers agree.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/data/text_source.h"

namespace tandem::data::detail {

class RecordBoundary {
 public:
  enum class Kind {
    separator,  // behind a separator: a newline in .jsonl
    cut,        // inside a .txt document, between two words
    none,       // nowhere: the file is one record
  };

  RecordBoundary() = default;
  RecordBoundary(const TextFile& file, const TextOptions& options);

  Kind kind() const { return kind_; }

  // In an uncompressed file, the first boundary at or after an offset that any reader would find: 0 for 0, the end of
  // the file when there is none. A separator that overlaps an earlier one ("\n\n" in "\n\n\n") does not count, since
  // whether it is one depends on where reading began.
  std::int64_t firstAtOrAfter(std::int64_t offset) const;

  // The last boundary in a text that begins at one: the length of the whole records there.
  std::optional<std::size_t> endOfLast(std::string_view text) const;

 private:
  TextFile file_;
  Kind kind_ = Kind::none;
  std::string separator_;
};

// Whether a long text may be cut before this byte without any tokenizer noticing: every pattern begins a word here,
// whatever comes before, none looks across, and no normalisation joins the two sides. True
// - between a letter a-z and a single space that a letter a-z follows;
// - behind a single newline between something printable in ASCII and a letter (a-z, Cyrillic, CJK).
bool isSafeCut(std::string_view text, std::size_t at);

}  // namespace tandem::data::detail
