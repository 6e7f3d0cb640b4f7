#include "common/tokenizer/word_counts.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>

#include "common/base/error.h"
#include "common/tokenizer/detail/normalizer.h"
#include "common/tokenizer/detail/word_hash.h"
#include "common/tokenizer/detail/word_scanner.h"

namespace tandem::tokenizer {
namespace {

constexpr std::string_view magic = "TANDEMWC";

void appendNumber(std::string& bytes, std::int64_t number) {
  for (int shift = 0; shift < 64; shift += 8) {
    bytes += static_cast<char>((static_cast<std::uint64_t>(number) >> shift) & 255);
  }
}

[[noreturn]] void throwDamaged() {
  throw base::Error(base::ErrorKind::badData,
                    "word counts received from another rank are damaged; do all ranks run the same build?");
}

std::int64_t takeNumber(std::string_view& bytes) {
  if (bytes.size() < 8) throwDamaged();
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    number |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  bytes.remove_prefix(8);
  if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) throwDamaged();
  return static_cast<std::int64_t>(number);
}

}  // namespace

std::string_view WordCounts::bytes(const Entry& entry) const {
  return {arena_.data() + entry.offset, static_cast<std::size_t>(entry.size)};
}

void WordCounts::grow() {
  slots_.assign(std::max<std::size_t>(1024, 2 * slots_.size()), {});
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    std::size_t place = entries_[i].hash & mask;
    while (slots_[place].entry != 0) place = (place + 1) & mask;
    slots_[place] = {static_cast<std::uint32_t>(entries_[i].hash >> 32), static_cast<std::uint32_t>(i + 1)};
  }
}

void WordCounts::addHashed(std::string_view word, std::uint64_t hash, std::int64_t count) {
  if (2 * (entries_.size() + 1) > slots_.size()) grow();
  const std::size_t mask = slots_.size() - 1;
  const auto upper = static_cast<std::uint32_t>(hash >> 32);
  std::size_t place = hash & mask;
  for (; slots_[place].entry != 0; place = (place + 1) & mask) {
    if (slots_[place].hash != upper) continue;
    Entry& entry = entries_[slots_[place].entry - 1];
    if (bytes(entry) == word) {
      entry.count += count;
      return;
    }
  }
  if (entries_.size() + 1 >= std::numeric_limits<std::uint32_t>::max()) {
    throw base::Error(base::ErrorKind::badData, "the text has more than 2^32 distinct words; train on a sample of it");
  }
  slots_[place] = {upper, static_cast<std::uint32_t>(entries_.size() + 1)};
  entries_.push_back({hash, static_cast<std::int64_t>(arena_.size()), static_cast<std::int64_t>(word.size()), count});
  arena_ += word;
}

void WordCounts::add(std::string_view word, std::int64_t count) {
  addHashed(word, detail::wordHash(word.data(), word.size()), count);
}

void WordCounts::addText(std::string_view text, Pattern pattern, bool normalizeToC) {
  textBytes_ += static_cast<std::int64_t>(text.size());
  std::string normalized;
  if (normalizeToC && !detail::isPlainlyNormal(text)) {
    normalized = detail::normalizeToC(text);
    text = normalized;
  }
  detail::forEachWord(pattern, text, [this](const char* begin, const char* end) {
    add({begin, static_cast<std::size_t>(end - begin)}, 1);
  });
}

void WordCounts::merge(const WordCounts& other) {
  for (const Entry& entry : other.entries_) addHashed(other.bytes(entry), entry.hash, entry.count);
  textBytes_ += other.textBytes_;
}

std::vector<WordCounts::Word> WordCounts::sorted() const {
  std::vector<Word> words;
  words.reserve(entries_.size());
  for (const Entry& entry : entries_) words.push_back({bytes(entry), entry.count});
  std::sort(words.begin(), words.end(), [](const Word& a, const Word& b) { return a.bytes < b.bytes; });
  return words;
}

std::string WordCounts::serialize() const {
  std::string result(magic);
  appendNumber(result, textBytes_);
  appendNumber(result, words());
  for (const Word& word : sorted()) {
    appendNumber(result, static_cast<std::int64_t>(word.bytes.size()));
    appendNumber(result, word.count);
    result += word.bytes;
  }
  return result;
}

WordCounts WordCounts::deserialize(std::string_view bytes) {
  if (!bytes.starts_with(magic)) throwDamaged();
  bytes.remove_prefix(magic.size());
  WordCounts counts;
  counts.textBytes_ = takeNumber(bytes);
  const std::int64_t words = takeNumber(bytes);
  for (std::int64_t i = 0; i < words; ++i) {
    const auto size = static_cast<std::size_t>(takeNumber(bytes));
    const std::int64_t count = takeNumber(bytes);
    if (size > bytes.size()) throwDamaged();
    counts.add(bytes.substr(0, size), count);
    bytes.remove_prefix(size);
  }
  if (!bytes.empty() || counts.words() != words) throwDamaged();
  return counts;
}

WordCounts countWords(const DocumentSource& source, Pattern pattern, bool normalizeToC, int threads) {
  std::mutex mutex;  // guards the source and the failure
  std::exception_ptr failure;
  const auto work = [&](WordCounts& counts) {
    std::string document;
    try {
      while (true) {
        {
          const std::lock_guard lock(mutex);
          if (failure || !source(document)) return;
        }
        counts.addText(document, pattern, normalizeToC);
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  std::vector<WordCounts> parts(static_cast<std::size_t>(std::max(threads, 1)));
  std::vector<std::thread> helpers;
  for (std::size_t i = 1; i < parts.size(); ++i) helpers.emplace_back(work, std::ref(parts[i]));
  work(parts[0]);
  for (std::thread& helper : helpers) helper.join();
  if (failure) std::rethrow_exception(failure);
  for (std::size_t i = 1; i < parts.size(); ++i) parts[0].merge(parts[i]);
  return std::move(parts[0]);
}

}  // namespace tandem::tokenizer
