#include "common/data/block_reader.h"

#include <algorithm>
#include <utility>

#include "common/base/error.h"
#include "common/base/files.h"
#include "common/data/detail/boundaries.h"
#include "common/data/detail/byte_stream.h"
#include "common/data/detail/json_text.h"
#include "common/data/detail/utf8.h"

namespace tandem::data {
namespace {

using base::Error;
using base::ErrorKind;

constexpr std::size_t blockBytes = std::size_t{1} << 20;
constexpr std::size_t longestRecord = std::size_t{1} << 30;
constexpr std::string_view byteOrderMark = "\xEF\xBB\xBF";

// The line, counted from 1, that a byte of the decompressed file is in: only errors ask, so the file is read again.
std::int64_t lineOf(const TextFile& file, std::int64_t offset) {
  const std::unique_ptr<detail::ByteStream> stream = detail::openStream(file, 0);
  std::vector<char> buffer(blockBytes);
  std::int64_t lines = 1;
  while (offset > 0) {
    const auto wanted = std::min<std::int64_t>(offset, static_cast<std::int64_t>(buffer.size()));
    const std::int64_t got = stream->read(std::span(buffer).first(static_cast<std::size_t>(wanted)));
    if (got == 0) break;
    lines += std::count(buffer.begin(), buffer.begin() + got, '\n');
    offset -= got;
  }
  return lines;
}

std::string badRecordText(const TextFile& file, std::int64_t offset, const std::string& why) {
  return "'" + file.path.string() + "', line " + std::to_string(lineOf(file, offset)) + ": " + why;
}

// Counts a bad record, or throws it.
void noteBadRecord(InputReport& report, const TextFile& file, std::int64_t offset, const std::string& why,
                   const TextOptions& options) {
  if (!options.skipBadRecords) {
    throw Error(ErrorKind::badData,
                badRecordText(file, offset, why) + "; correct it, or leave such records out with --skip-bad-records");
  }
  if (report.badRecords++ == 0) report.firstBadRecord = badRecordText(file, offset, why);
}

bool isBlank(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }

using Visit = std::function<void(const Document&)>;

void visitRecord(std::string_view line, const TextBlock& block, const TextFile& file, std::int64_t begin,
                 const TextOptions& options, const Visit& visit, InputReport& report) {
  try {
    visit({line, block.file, begin});
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::badData) throw;
    noteBadRecord(report, file, begin, error.message(), options);
    return;
  }
  report.invalidUtf8 += detail::countInvalidUtf8(line);
}

void visitLines(const TextBlock& block, const TextFile& file, const TextOptions& options, const Visit& visit,
                InputReport& report) {
  std::string text;
  std::string_view rest = block.bytes;
  if (block.begin == 0 && rest.starts_with(byteOrderMark)) rest.remove_prefix(byteOrderMark.size());
  while (!rest.empty()) {
    const std::size_t length = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, length);
    const std::int64_t begin = block.begin + (line.data() - block.bytes.data());
    rest.remove_prefix(std::min(length + 1, rest.size()));
    if (isBlank(line)) continue;
    if (options.wholeRecords) {
      visitRecord(line, block, file, begin, options, visit, report);
      continue;
    }
    if (const char* why = detail::extractText(line, options.textKey, text)) {
      noteBadRecord(report, file, begin, std::string(why) + " (key '" + options.textKey + "')", options);
    } else if (text.empty()) {
      ++report.emptyDocuments;
    } else {
      report.invalidUtf8 += detail::countInvalidUtf8(text);
      visit({text, block.file, begin});
    }
  }
}

void visitSeparated(const TextBlock& block, const std::string& separator, const Visit& visit, InputReport& report) {
  std::string_view rest = block.bytes;
  while (!rest.empty()) {
    const std::size_t length = std::min(rest.find(separator), rest.size());
    const std::string_view text = rest.substr(0, length);
    rest.remove_prefix(std::min(length + separator.size(), rest.size()));
    if (text.empty()) {
      ++report.emptyDocuments;
      continue;
    }
    report.invalidUtf8 += detail::countInvalidUtf8(text);
    visit({text, block.file, block.begin + (text.data() - block.bytes.data())});
  }
}

}  // namespace

void InputReport::add(const InputReport& other) {
  if (badRecords == 0) firstBadRecord = other.firstBadRecord;
  badRecords += other.badRecords;
  emptyDocuments += other.emptyDocuments;
  invalidUtf8 += other.invalidUtf8;
}

// The file being read, and what was read of it but not yet handed out.
struct BlockReader::Current {
  std::int64_t index = 0;
  std::unique_ptr<detail::ByteStream> stream;
  std::int64_t offset = 0;  // of the first byte of the buffer in the file
  std::int64_t left = 0;    // bytes of the range that are still to be read, where the file isn't compressed
  bool toTheEnd = true;     // the range ends with the file
  bool exhausted = false;
  std::string buffer;
  detail::RecordBoundary boundary;
};

BlockReader::BlockReader(std::span<const TextFile> files, std::vector<FileRange> ranges, const TextOptions& options)
    : files_(files), ranges_(std::move(ranges)), options_(options) {}

BlockReader::~BlockReader() = default;

bool BlockReader::openNext() {
  while (nextRange_ < ranges_.size()) {
    const FileRange range = ranges_[nextRange_++];
    const TextFile& file = files_[static_cast<std::size_t>(range.file)];
    const detail::RecordBoundary boundary(file, options_);
    current_ = std::make_unique<Current>();
    current_->index = range.file;
    current_->boundary = boundary;
    if (file.compression == Compression::none) {
      current_->offset = boundary.firstAtOrAfter(range.begin);
      const std::int64_t end = boundary.firstAtOrAfter(range.end);
      current_->left = end - current_->offset;
      current_->toTheEnd = end == file.bytes;
      if (current_->left == 0) continue;
    } else {
      current_->left = INT64_MAX;
    }
    current_->stream = detail::openStream(file, current_->offset);
    return true;
  }
  current_.reset();
  return false;
}

// Reads until the buffer has the wanted size or the range is exhausted.
void BlockReader::fill(std::size_t wanted) {
  Current& c = *current_;
  const TextFile& file = files_[static_cast<std::size_t>(c.index)];
  while (c.buffer.size() < wanted && !c.exhausted) {
    const std::size_t before = c.buffer.size();
    const auto ask =
        static_cast<std::size_t>(std::min<std::int64_t>(c.left, static_cast<std::int64_t>(wanted - before)));
    c.buffer.resize(before + ask);
    std::int64_t got = 0;
    try {
      got = c.stream->read(std::span(c.buffer).subspan(before));
    } catch (const detail::BrokenStream& failure) {
      c.buffer.resize(before);
      c.exhausted = true;
      noteBadRecord(report_, file, c.offset + static_cast<std::int64_t>(before), failure.what(), options_);
      // A cut document ends here; of records, the last one is incomplete.
      if (c.boundary.kind() == detail::RecordBoundary::Kind::separator) {
        c.buffer.resize(c.boundary.endOfLast(c.buffer).value_or(0));
      }
      break;
    }
    c.buffer.resize(before + static_cast<std::size_t>(got));
    c.left -= got;
    if (got == 0 && file.compression == Compression::none && c.left > 0) {
      throw Error(ErrorKind::file, "'" + file.path.string() + "' became shorter while it was read");
    }
    c.exhausted = got == 0 || c.left == 0;
  }
}

// The first `count` bytes of the buffer as a block.
TextBlock BlockReader::take(std::size_t count) {
  Current& c = *current_;
  TextBlock block{.file = c.index, .begin = c.offset, .bytes = {}};
  const bool all = count == c.buffer.size();
  if (all) {
    block.bytes = std::exchange(c.buffer, {});
  } else {
    block.bytes = c.buffer.substr(0, count);
    c.buffer.erase(0, count);
  }
  if (c.boundary.kind() != detail::RecordBoundary::Kind::separator) {
    block.startsDocument = c.offset == 0;
    block.endsDocument = all && c.exhausted && c.toTheEnd;
  }
  c.offset += static_cast<std::int64_t>(count);
  return block;
}

std::optional<TextBlock> BlockReader::next() {
  for (;;) {
    if (!current_ && !openNext()) return std::nullopt;
    Current& c = *current_;
    // One byte more than a block, so that the end of the file is seen together with its last block.
    for (std::size_t wanted = blockBytes + 1; !c.exhausted; wanted *= 2) {
      fill(wanted);
      if (c.exhausted) break;
      if (const std::optional<std::size_t> end = c.boundary.endOfLast(c.buffer); end && *end > 0) return take(*end);
      const bool whole = c.boundary.kind() == detail::RecordBoundary::Kind::none;
      if (wanted > longestRecord && !whole) {
        throw Error(ErrorKind::badData,
                    badRecordText(files_[static_cast<std::size_t>(c.index)], c.offset,
                                  "a record of more than 1 GiB begins here; is this file what its name says?"));
      }
    }
    if (c.buffer.empty()) {
      current_.reset();
      continue;
    }
    TextBlock last = take(c.buffer.size());
    current_.reset();
    return last;
  }
}

InputReport forEachDocument(const TextBlock& block, const TextFile& file, const TextOptions& options,
                            const Visit& visit) {
  InputReport report;
  if (file.format == TextFormat::jsonLines) {
    visitLines(block, file, options, visit, report);
  } else if (options.documentSeparator) {
    visitSeparated(block, *options.documentSeparator, visit, report);
  } else {
    report.invalidUtf8 += detail::countInvalidUtf8(block.bytes);
    visit({block.bytes, block.file, 0, block.startsDocument, block.endsDocument});
  }
  return report;
}

}  // namespace tandem::data
