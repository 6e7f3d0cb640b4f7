#pragma once
// The pairs of a training corpus, their counts, and where they are; updated merge by merge.
//
// All distinct words stand one behind the other in an array of cells, a cell a byte, a wall before and behind each
// word. A token over cells [b, e) is written into its first and its last cell, so its neighbours are found from either
// side through the lengths of tokens; cells between hold nothing. Each pair keeps the places where it began when it was
// counted. Places are checked when the pair's turn comes, and a heap orders pairs by counts that may be out of date:
// counts of a pair only fall once it is in, so a stale top is put back with its true count.

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/tokenizer/definition.h"
#include "common/tokenizer/word_counts.h"

namespace tandem::tokenizer::detail {

class PairLearner {
 public:
  // Throws Error of kind badData if the words are more than 2^32 bytes.
  explicit PairLearner(const WordCounts& counts);

  struct Best {
    TokenId left;
    TokenId right;
    std::int64_t count;
  };
  // The pair to join next; nothing if no pair is left.
  std::optional<Best> takeBest();
  // Joins a pair everywhere into `result`, whose length in bytes must be given when it is new.
  void join(const Best& pair, TokenId result, std::int64_t length);

 private:
  using Place = std::uint32_t;
  using PairIndex = std::uint32_t;
  struct Pair {
    std::int64_t count = 0;
    std::vector<Place> places;
  };
  struct Candidate {
    std::int64_t count;
    std::uint64_t key;  // left id above right id: also the order among equals
    PairIndex pair;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : key > other.key;
    }
  };
  struct Slot {
    std::uint64_t key = ~std::uint64_t{0};
    PairIndex pair = 0;
  };

  void layOut(const std::vector<WordCounts::Word>& words);
  void countPairs();
  // The index of a pair, made if it is new.
  PairIndex indexOf(std::uint64_t key);
  void growTable();
  void addPair(TokenId left, TokenId right, Place place, std::int64_t weight);
  void takePair(TokenId left, TokenId right, std::int64_t weight);

  std::vector<TokenId> cells_;
  std::vector<std::uint32_t> wordOf_;   // of a cell
  std::vector<std::int64_t> weights_;   // of a word: its count
  std::vector<std::uint32_t> lengths_;  // of a token, in bytes
  std::vector<Pair> pairs_;
  std::vector<std::uint64_t> keys_;  // of a pair
  std::vector<Slot> slots_;          // open addressing, a power of two, at most half full
  std::vector<Candidate> heap_;
  std::vector<PairIndex> grown_;  // pairs whose count has risen in the running join
};

}  // namespace tandem::tokenizer::detail
