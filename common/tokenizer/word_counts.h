#pragma once
// How often each word comes in a text: all that byte-pair training needs to know of it.
//
// Counts of parts of a corpus add up to the counts of the whole, in any order, so ranks and threads count their parts
// alone; what is learnt from the sum does not depend on how the corpus was parted (between documents).

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/tokenizer/pattern.h"

namespace tandem::tokenizer {

class WordCounts {
 public:
  // Counts the words of a document.
  void addText(std::string_view text, Pattern pattern, bool normalizeToC = false);
  void add(std::string_view word, std::int64_t count);
  void merge(const WordCounts& other);

  std::int64_t words() const { return static_cast<std::int64_t>(entries_.size()); }  // distinct
  std::int64_t textBytes() const { return textBytes_; }

  struct Word {
    std::string_view bytes;
    std::int64_t count;
  };
  // Ordered by bytes. The views last as long as this object is not changed.
  std::vector<Word> sorted() const;

  // The same bytes for the same counts, whatever order they were added in.
  std::string serialize() const;
  // Throws Error of kind badData if the bytes are not what serialize() gives.
  static WordCounts deserialize(std::string_view bytes);

 private:
  struct Entry {
    std::uint64_t hash;
    std::int64_t offset;
    std::int64_t size;
    std::int64_t count;
  };
  std::string_view bytes(const Entry& entry) const;
  void addHashed(std::string_view word, std::uint64_t hash, std::int64_t count);
  void grow();

  std::string arena_;
  std::vector<Entry> entries_;
  // Open addressing, a power of two, at most half full: the upper half of the hash and 1 + the entry's index.
  struct Slot {
    std::uint32_t hash = 0;
    std::uint32_t entry = 0;
  };
  std::vector<Slot> slots_;
  std::int64_t textBytes_ = 0;
};

// Gives the next document, or false when there is none. Called by one thread at a time.
using DocumentSource = std::function<bool(std::string& document)>;

// Counts the words of all documents with this many threads. An exception of the source, or of a thread, is thrown on.
WordCounts countWords(const DocumentSource& source, Pattern pattern, bool normalizeToC, int threads);

}  // namespace tandem::tokenizer
