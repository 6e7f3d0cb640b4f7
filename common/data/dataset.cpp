#include "common/data/dataset.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "common/base/error.h"
#include "common/base/files.h"
#include "common/base/hash.h"
#include "common/tokenizer/tokenizer_json.h"

namespace tandem::data {
namespace {

using base::DType;
using base::Error;
using base::ErrorKind;

constexpr const char* formatName = "tandem-dataset";

// A file of up to this many elements a column is written in one piece, without chunks. Chunks of this size are larger
// than HDF5's chunk cache, so that reading a window reads that window and not a whole chunk.
constexpr std::int64_t chunkElements = std::int64_t{1} << 20;

DType tokenType(std::int64_t vocabularySize) { return vocabularySize <= 65536 ? DType::u16 : DType::u32; }

[[noreturn]] void bad(const std::filesystem::path& path, const std::string& place, const std::string& why) {
  throw Error(ErrorKind::badData, "the dataset '" + path.string() + "' is damaged or no dataset of ours: " + place +
                                      " " + why + "; make it again with `tokenize encode`");
}

// Widens and copies stored tokens; returns the largest.
template <class Stored>
std::uint32_t widen(const std::byte* stored, std::span<std::int32_t> target) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < target.size(); ++i) {
    Stored value;
    std::memcpy(&value, stored + i * sizeof(Stored), sizeof(Stored));
    largest = std::max<std::uint32_t>(largest, value);
    target[i] = static_cast<std::int32_t>(value);
  }
  return largest;
}

hdf5::Dataset column(const hdf5::File& file, const std::string& name) {
  if (!file.has(name)) bad(file.path(), name, "is missing");
  hdf5::Dataset dataset = file.dataset(name);
  if (dataset.shape().rank() != 1) bad(file.path(), name, "has shape " + dataset.shape().text() + ", not one axis");
  // A virtual dataset reads as zeros where its sources are missing: silently wrong tokens.
  if (dataset.isVirtual()) bad(file.path(), name, "is a virtual dataset; ours hold their data");
  return dataset;
}

std::string requiredText(const hdf5::File& file, const std::string& name) {
  const auto value = file.textAttribute("/", name);
  if (!value) bad(file.path(), "the attribute " + name, "is missing");
  return *value;
}

std::int64_t requiredInteger(const hdf5::File& file, const std::string& name) {
  const auto value = file.integerAttribute("/", name);
  if (!value) bad(file.path(), "the attribute " + name, "is missing");
  return *value;
}

// The last `count` parts of a path.
std::filesystem::path tailOf(const std::filesystem::path& path, std::ptrdiff_t count) {
  std::filesystem::path tail;
  for (auto part = std::prev(path.end(), count); part != path.end(); ++part) tail /= *part;
  return tail;
}

}  // namespace

std::vector<std::string> distinctNames(std::span<const std::string> paths) {
  std::vector<std::filesystem::path> whole;
  for (const std::string& path : paths) whole.push_back(std::filesystem::weakly_canonical(path));
  std::vector<std::string> names;
  for (const std::filesystem::path& path : whole) {
    if (std::ranges::count(whole, path) > 1) {
      throw Error(ErrorKind::usage, "'" + path.string() + "' is given twice");
    }
    const auto parts = std::distance(path.begin(), path.end());
    std::ptrdiff_t count = 1;
    const auto isShared = [&](const std::filesystem::path& other) {
      return other != path && std::distance(other.begin(), other.end()) >= count &&
             tailOf(other, count) == tailOf(path, count);
    };
    while (count < parts && std::ranges::any_of(whole, isShared)) ++count;
    names.push_back(tailOf(path, count).string());
  }
  return names;
}

bool isDataset(const std::filesystem::path& path) {
  try {
    return hdf5::File::open(path).textAttribute("/", "format") == formatName;
  } catch (const Error&) {
    return false;
  }
}

Dataset::Dataset(const std::filesystem::path& path) : file_(hdf5::File::open(path)) {
  readDescription();
  tokens_ = column(file_, "/tokens");
  type_ = tokens_->type();
  if (type_ != DType::u16 && type_ != DType::u32) {
    bad(path, "/tokens", std::string("holds ") + base::name(type_) + "; uint16 or uint32 is expected");
  }
  tokenCount_ = tokens_->count();
  if (tokenCount_ == 0) bad(path, "/tokens", "is empty");
  if (file_.has("/loss_mask")) {
    lossMask_ = column(file_, "/loss_mask");
    if (lossMask_->type() != DType::u8) bad(path, "/loss_mask", "is not uint8");
    if (lossMask_->count() != tokenCount_) bad(path, "/loss_mask", "has another length than /tokens");
  }
  readOffsets();
}

void Dataset::readDescription() {
  const std::string format = file_.textAttribute("/", "format").value_or("");
  if (format != formatName) {
    throw Error(ErrorKind::badData, "'" + path().string() + "' is no dataset: its attribute format is '" + format +
                                        "', not '" + formatName + "'; `tokenize encode` makes datasets");
  }
  const std::int64_t version = requiredInteger(file_, "version");
  if (version != datasetVersion) {
    throw Error(ErrorKind::badData, "'" + path().string() + "' is a dataset of version " + std::to_string(version) +
                                        ", this program reads version " + std::to_string(datasetVersion));
  }
  if (!file_.has("/tokenizer")) bad(path(), "/tokenizer", "is missing");
  description_.tokenizer = file_.readText("/tokenizer");
  description_.tokenizerHash = requiredText(file_, "tokenizer_hash");
  const bool hexadecimal = description_.tokenizerHash.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (description_.tokenizerHash.size() != 32 || !hexadecimal) {
    bad(path(), "the attribute tokenizer_hash", "is no hash of 32 hexadecimal digits");
  }
  description_.vocabularySize = requiredInteger(file_, "vocabulary_size");
  if (description_.vocabularySize < 1 || description_.vocabularySize > std::numeric_limits<std::int32_t>::max()) {
    bad(path(), "the attribute vocabulary_size", "is " + std::to_string(description_.vocabularySize));
  }
  description_.textBytes = requiredInteger(file_, "text_bytes");
  if (description_.textBytes < 0) bad(path(), "the attribute text_bytes", "is negative");
  description_.sources = requiredText(file_, "sources");
  description_.pairs = file_.integerAttribute("/", "preference_pairs").value_or(0) != 0;
  if (file_.has("/chat_template")) description_.chatTemplate = file_.readText("/chat_template");
}

void Dataset::readOffsets() {
  const std::string name = "/document_offsets";
  const hdf5::Dataset stored = column(file_, name);
  if (stored.type() != DType::u64)
    bad(path(), name, std::string("holds ") + base::name(stored.type()) + ", not uint64");
  if (stored.count() < 2) bad(path(), name, "has fewer than two values");
  // Every document has a token, so more offsets than that can't be right; checked before memory is taken for them.
  if (stored.count() > tokenCount_ + 1) bad(path(), name, "has more documents than there are tokens");
  offsets_.resize(static_cast<std::size_t>(stored.count()));
  stored.read(0, stored.count(), offsets_.data());
  if (offsets_.front() != 0) bad(path(), name, "does not start at 0");
  const auto wrong = std::adjacent_find(offsets_.begin(), offsets_.end(), std::greater_equal<>());
  if (wrong != offsets_.end())
    bad(path(), name, "does not rise after element " + std::to_string(wrong - offsets_.begin()));
  if (description_.pairs && (documentCount() % 2 != 0 || !lossMask_)) {
    bad(path(), name, "has no pairs of documents with a loss mask, though the attribute preference_pairs says so");
  }
  if (offsets_.back() != tokenCount_) {
    bad(path(), name,
        "ends at " + std::to_string(offsets_.back()) + ", but there are " + std::to_string(tokenCount_) + " tokens");
  }
}

std::int64_t Dataset::documentOf(std::int64_t token) const {
  return std::upper_bound(offsets_.begin(), offsets_.end(), token) - offsets_.begin() - 1;
}

void Dataset::readTokens(std::int64_t begin, std::span<std::int32_t> target) const {
  const auto count = static_cast<std::int64_t>(target.size());
  TANDEM_ASSERT(begin >= 0 && begin + count <= tokenCount_, "tokens outside the dataset");
  scratch_.resize(target.size() * static_cast<std::size_t>(base::byteSize(type_)));
  tokens_->read(begin, count, scratch_.data());
  const std::uint32_t largest = type_ == DType::u16 ? widen<std::uint16_t>(scratch_.data(), target)
                                                    : widen<std::uint32_t>(scratch_.data(), target);
  if (count > 0 && largest >= static_cast<std::uint64_t>(description_.vocabularySize)) {
    bad(path(), "/tokens",
        "holds the token " + std::to_string(largest) + " between elements " + std::to_string(begin) + " and " +
            std::to_string(begin + count) + ", outside the vocabulary of " +
            std::to_string(description_.vocabularySize));
  }
}

void Dataset::readLossMask(std::int64_t begin, std::span<std::uint8_t> target) const {
  TANDEM_ASSERT(hasLossMask(), "the dataset has no loss mask");
  lossMask_->read(begin, static_cast<std::int64_t>(target.size()), target.data());
}

bool meansTheSame(const Dataset& dataset, const std::string& json, const std::string& origin) {
  const tokenizer::Tokenizer one = tokenizer::fromJson(json, origin);
  if (one.hash() == dataset.description().tokenizerHash) return true;
  const tokenizer::Tokenizer other = tokenizer::fromJson(dataset.description().tokenizer,
                                                         "the tokenizer of dataset '" + dataset.path().string() + "'");
  if (one.vocabularySize() != other.vocabularySize()) return false;
  for (std::int64_t i = 0; i < one.vocabularySize(); ++i) {
    const auto id = static_cast<tokenizer::TokenId>(i);
    if (one.tokenBytes(id) != other.tokenBytes(id) || one.isSpecial(id) != other.isSpecial(id)) return false;
  }
  return true;
}

// A 1-D dataset that is filled from its start: appended by whole chunks, or written in one piece when it stays short.
class DatasetWriter::Column {
 public:
  Column(std::string name, DType type) : name_(std::move(name)), type_(type) {}

  template <class Stored, class Value>
  void add(hdf5::File& file, std::span<const Value> values) {
    const std::size_t before = pending_.size();
    pending_.resize(before + values.size() * sizeof(Stored));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto stored = static_cast<Stored>(values[i]);
      std::memcpy(pending_.data() + before + i * sizeof(Stored), &stored, sizeof(Stored));
    }
    const auto width = static_cast<std::size_t>(base::byteSize(type_));
    const std::size_t whole = pending_.size() / width / chunkElements * chunkElements;
    if (whole > 0 && pending_.size() > whole * width) appendChunks(file, whole);
  }

  // Writes the rest.
  void finish(hdf5::File& file) {
    const std::int64_t count = static_cast<std::int64_t>(pending_.size()) / base::byteSize(type_);
    if (growing_) {
      if (count > 0) growing_->append(count, pending_.data());
    } else {
      file.create(name_, type_, base::Shape{count}).write(0, count, pending_.data());
    }
    pending_.clear();
    growing_.reset();
  }

 private:
  void appendChunks(hdf5::File& file, std::size_t count) {
    if (!growing_) growing_ = file.createGrowing(name_, type_, chunkElements);
    growing_->append(static_cast<std::int64_t>(count), pending_.data());
    const auto bytes = static_cast<std::ptrdiff_t>(count) * static_cast<std::ptrdiff_t>(base::byteSize(type_));
    pending_.erase(pending_.begin(), pending_.begin() + bytes);
  }

  std::string name_;
  DType type_;
  std::vector<std::byte> pending_;
  std::optional<hdf5::Dataset> growing_;
};

DatasetWriter::DatasetWriter(std::filesystem::path path, std::int64_t vocabularySize, bool withLossMask)
    : path_(std::move(path)), partial_(path_.string() + ".partial"), vocabularySize_(vocabularySize) {
  if (std::filesystem::is_directory(path_)) {
    throw Error(ErrorKind::usage, "the output '" + path_.string() + "' is a folder; give the name of a file");
  }
  const std::filesystem::path folder = path_.has_parent_path() ? path_.parent_path() : ".";
  if (!std::filesystem::is_directory(folder)) {
    throw Error(ErrorKind::usage, "the folder '" + folder.string() + "' of the output does not exist; make it first");
  }
  file_ = hdf5::File::create(partial_);
  tokens_ = std::make_unique<Column>("/tokens", tokenType(vocabularySize));
  offsets_ = std::make_unique<Column>("/document_offsets", DType::u64);
  if (withLossMask) lossMask_ = std::make_unique<Column>("/loss_mask", DType::u8);
}

DatasetWriter::~DatasetWriter() {
  if (!file_) return;
  tokens_.reset();
  offsets_.reset();
  lossMask_.reset();
  file_.reset();
  std::error_code ignored;
  std::filesystem::remove(partial_, ignored);
}

void DatasetWriter::beginDocument() {
  TANDEM_ASSERT(documentCount_ == 0 || tokenCount_ > 0, "a document of a dataset has at least one token");
  offsets_->add<std::uint64_t>(*file_, std::span<const std::int64_t>(&tokenCount_, 1));
  ++documentCount_;
}

void DatasetWriter::append(std::span<const std::uint32_t> tokens, std::span<const std::uint8_t> lossMask) {
  TANDEM_ASSERT(documentCount_ > 0 || tokens.empty(), "tokens belong to a document");
  TANDEM_ASSERT(lossMask.size() == (lossMask_ ? tokens.size() : 0), "a mask has a value for each token");
  if (tokenType(vocabularySize_) == DType::u16) {
    tokens_->add<std::uint16_t>(*file_, tokens);
  } else {
    tokens_->add<std::uint32_t>(*file_, tokens);
  }
  if (lossMask_) lossMask_->add<std::uint8_t>(*file_, lossMask);
  tokenCount_ += static_cast<std::int64_t>(tokens.size());
}

void DatasetWriter::finish(const DatasetDescription& description) {
  TANDEM_ASSERT(description.vocabularySize == vocabularySize_, "a dataset has one vocabulary");
  TANDEM_ASSERT(tokenCount_ > 0, "a dataset has at least one token");
  offsets_->add<std::uint64_t>(*file_, std::span<const std::int64_t>(&tokenCount_, 1));
  tokens_->finish(*file_);
  offsets_->finish(*file_);
  if (lossMask_) lossMask_->finish(*file_);
  file_->writeText("/tokenizer", description.tokenizer);
  if (!description.chatTemplate.empty()) file_->writeText("/chat_template", description.chatTemplate);
  file_->setAttribute("/", "format", formatName);
  file_->setAttribute("/", "version", datasetVersion);
  file_->setAttribute("/", "tokenizer_hash", description.tokenizerHash);
  file_->setAttribute("/", "vocabulary_size", vocabularySize_);
  file_->setAttribute("/", "text_bytes", description.textBytes);
  file_->setAttribute("/", "sources", description.sources);
  if (description.pairs) file_->setAttribute("/", "preference_pairs", std::int64_t{1});
  file_->close();
  base::File::openForReading(partial_).sync();
  std::error_code failure;
  std::filesystem::rename(partial_, path_, failure);
  if (failure) {
    throw Error(ErrorKind::file,
                "cannot rename '" + partial_.string() + "' to '" + path_.string() + "': " + failure.message());
  }
  file_.reset();
  base::syncFolder(path_.has_parent_path() ? path_.parent_path() : ".");
}

}  // namespace tandem::data
