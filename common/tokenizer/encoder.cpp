#include "common/tokenizer/encoder.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "common/tokenizer/detail/normalizer.h"
#include "common/tokenizer/detail/tables.h"
#include "common/tokenizer/detail/word_cache.h"
#include "common/tokenizer/detail/word_scanner.h"

namespace tandem::tokenizer {
namespace {

using detail::Merger;
using detail::noToken;
using detail::WordCache;

std::unique_ptr<WordCache> cacheFor(std::int64_t expectedBytes) {
  // A line for some bytes of text, as most words repeat; beyond 6 MiB lookups cost more than they save.
  const auto lines = std::bit_ceil(static_cast<std::size_t>(std::max<std::int64_t>(expectedBytes, 0)) / 64 + 1);
  return std::make_unique<WordCache>(std::min<std::size_t>(lines, 1 << 16),
                                     std::clamp<std::size_t>(lines / 4, 1, 1 << 15));
}

// Encodes words one by one, collecting ids in a small buffer.
class WordEncoder {
 public:
  WordEncoder(const detail::Tables& tables, WordCache& cache, const char* textEnd, std::vector<TokenId>& ids)
      : tables_(tables), cache_(cache), textEnd_(textEnd), ids_(ids) {}

  // Words wait until a batch of them is there, while the lines of memory that they need are on their way.
  void operator()(const char* begin, const char* end) {
    Waiting& next = waiting_[waitingCount_++];
    next.word = begin;
    next.size = static_cast<std::size_t>(end - begin);
    if (next.size <= WordCache::shortBytes) {
      next.key = WordCache::shortKey(begin, next.size, static_cast<std::size_t>(textEnd_ - begin));
      next.line = &cache_.shortLine(next.key);
      __builtin_prefetch(next.line);
    } else if (next.size <= WordCache::middleBytes) {
      next.entry = &cache_.middleEntry(detail::wordHash(begin, next.size));
      __builtin_prefetch(next.entry);
    }
    if (waitingCount_ == batch) encodeWaiting();
  }
  void finish() {
    encodeWaiting();
    flush();
  }

 private:
  static constexpr std::size_t room = 1024;
  static constexpr std::size_t batch = 32;

  struct Waiting {
    const char* word;
    std::size_t size;
    WordCache::ShortKey key;
    WordCache::ShortLine* line;
    WordCache::MiddleEntry* entry;
  };

  void encodeWaiting() {
    for (std::size_t i = 0; i < waitingCount_; ++i) {
      const Waiting& next = waiting_[i];
      if (next.size <= WordCache::shortBytes) {
        encodeShort(next.word, next.size, next.key, *next.line);
      } else if (next.size <= WordCache::middleBytes) {
        encodeMiddle(next.word, next.size, *next.entry);
      } else {
        encodeLong({next.word, next.size});
      }
    }
    waitingCount_ = 0;
  }

  void flush() {
    ids_.insert(ids_.end(), buffer_, buffer_ + count_);
    count_ = 0;
  }

  void encodeShort(const char* word, std::size_t size, const WordCache::ShortKey& key, WordCache::ShortLine& line) {
    if (line.recent.key == key) return append(line.recent);
    if (line.latest.key == key) {
      std::swap(line.recent, line.latest);
      return append(line.recent);
    }
    TokenId tokens[Merger::shortWord];
    const std::size_t count = compute({word, size}, tokens);
    append(tokens, count);
    if (count > WordCache::shortTokens) return;
    line.latest = {};
    line.latest.key = key;
    std::copy(tokens, tokens + count, line.latest.tokens);
  }

  void encodeMiddle(const char* word, std::size_t size, WordCache::MiddleEntry& entry) {
    if (entry.size == size && std::memcmp(entry.bytes, word, size) == 0) return append(entry.tokens, entry.count);
    TokenId tokens[Merger::shortWord];
    const std::size_t count = compute({word, size}, tokens);
    append(tokens, count);
    if (count > WordCache::middleTokens) return;
    entry.size = static_cast<std::uint8_t>(size);
    entry.count = static_cast<std::uint8_t>(count);
    std::memcpy(entry.bytes, word, size);
    std::copy(tokens, tokens + count, entry.tokens);
  }

  void encodeLong(std::string_view word) {
    if (word.size() <= Merger::shortWord) {
      TokenId tokens[Merger::shortWord];
      append(tokens, compute(word, tokens));
      return;
    }
    flush();
    const TokenId whole = tables_.wholeWord(word);
    if (whole != noToken) {
      ids_.push_back(whole);
    } else {
      tables_.merger.merge(word, ids_);
    }
  }

  std::size_t compute(std::string_view word, TokenId* tokens) const {
    const TokenId whole = tables_.wholeWord(word);
    if (whole == noToken) return tables_.merger.mergeShort(word, tokens);
    tokens[0] = whole;
    return 1;
  }

  void append(const WordCache::ShortEntry& entry) {
    TokenId* place = buffer_ + count_;
    std::memcpy(place, entry.tokens, sizeof(entry.tokens));
    // Without a branch, as how many tokens a word has is hard to foresee.
    count_ += 1;
    for (std::size_t i = 1; i < WordCache::shortTokens; ++i) count_ += entry.tokens[i] != noToken ? 1 : 0;
    if (count_ > room) flush();
  }
  void append(const TokenId* tokens, std::size_t count) {
    std::memcpy(buffer_ + count_, tokens, count * sizeof(TokenId));
    count_ += count;
    if (count_ > room) flush();
  }

  const detail::Tables& tables_;
  WordCache& cache_;
  const char* textEnd_;
  std::vector<TokenId>& ids_;
  TokenId buffer_[room + Merger::shortWord];
  std::size_t count_ = 0;
  Waiting waiting_[batch];
  std::size_t waitingCount_ = 0;
};

// Parts the text at added tokens, which are appended, and hands over what is between them. A special token that is not
// to be parsed is found all the same, so that no other token is found in its text, and left where it is.
template <typename Piece>
void partAtAddedTokens(const detail::AddedTokenFinder& finder, std::string_view text, EncodeOptions options,
                       std::vector<TokenId>& ids, Piece&& piece) {
  std::size_t begin = 0;
  std::size_t searched = finder.empty(options.parseSpecial) ? text.size() : 0;
  while (searched < text.size()) {
    const auto match = finder.find(text, searched);
    if (match.size == 0) break;
    searched = match.begin + match.size;
    if (match.special && !options.parseSpecial) continue;
    if (match.begin > begin) piece(text.substr(begin, match.begin - begin));
    ids.push_back(match.id);
    begin = searched;
  }
  if (begin < text.size()) piece(text.substr(begin));
}

}  // namespace

Encoder::Encoder(Tokenizer tokenizer, std::int64_t expectedBytes)
    : tokenizer_(std::move(tokenizer)), cache_(cacheFor(expectedBytes)) {}
Encoder::~Encoder() = default;
Encoder::Encoder(Encoder&&) noexcept = default;
Encoder& Encoder::operator=(Encoder&&) noexcept = default;

void Encoder::encode(std::string_view text, std::vector<TokenId>& ids, EncodeOptions options) {
  const detail::Tables& tables = tokenizer_.tables();
  partAtAddedTokens(tables.addedAsGiven, text, options, ids, [&](std::string_view piece) {
    if (!tables.definition.normalizesToC || detail::isPlainlyNormal(piece)) {
      encodeNormalized(piece, ids, options);
    } else {
      encodeNormalized(detail::normalizeToC(piece), ids, options);
    }
  });
}

void Encoder::encodeNormalized(std::string_view text, std::vector<TokenId>& ids, EncodeOptions options) {
  partAtAddedTokens(tokenizer_.tables().addedNormalized, text, options, ids,
                    [&](std::string_view piece) { encodeWords(piece, ids); });
}

void Encoder::encodeWords(std::string_view text, std::vector<TokenId>& ids) {
  WordEncoder words(tokenizer_.tables(), *cache_, text.data() + text.size(), ids);
  // By reference: the buffer belongs to this one encoder of words.
  detail::forEachWord(tokenizer_.pattern(), text, [&words](const char* begin, const char* end) { words(begin, end); });
  words.finish();
}

}  // namespace tandem::tokenizer
