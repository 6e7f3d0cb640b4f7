#include "common/data/detail/boundaries.h"

#include <algorithm>
#include <vector>

#include "common/base/error.h"
#include "common/base/files.h"

namespace tandem::data::detail {
namespace {

constexpr std::int64_t stepBytes = std::int64_t{1} << 16;

bool isAsciiLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// Lead bytes of UTF-8 whose characters are all letters: U+0400 to U+047F, and U+5000 to U+8FFF.
bool startsLetter(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return isAsciiLetter(c) || byte == 0xD0 || byte == 0xD1 || (byte >= 0xE5 && byte <= 0xE8);
}

// Calls found(first byte, offset) for growing pieces of a file from `from` on, until it gives an offset.
template <class Find>
std::int64_t searchFrom(const TextFile& file, std::int64_t from, const Find& find) {
  const base::File opened = base::File::openForReading(file.path);
  std::string text;
  for (;;) {
    const std::size_t before = text.size();
    text.resize(before + std::max<std::size_t>(before, stepBytes));
    const std::int64_t got = opened.readAt(from + static_cast<std::int64_t>(before),
                                           std::as_writable_bytes(std::span(text).subspan(before)));
    text.resize(before + static_cast<std::size_t>(got));
    if (const std::optional<std::size_t> at = find(std::string_view(text)))
      return from + static_cast<std::int64_t>(*at);
    if (got == 0) return file.bytes;
  }
}

}  // namespace

bool isSafeCut(std::string_view text, std::size_t at) {
  if (at < 2 || at + 1 >= text.size()) return false;
  const char before = text[at - 1];
  if (text[at] == ' ') return isAsciiLetter(before) && isAsciiLetter(text[at + 1]);
  return before == '\n' && text[at - 2] > ' ' && text[at - 2] < 0x7F && startsLetter(text[at]);
}

RecordBoundary::RecordBoundary(const TextFile& file, const TextOptions& options) : file_(file) {
  if (file.format == TextFormat::jsonLines) {
    kind_ = Kind::separator;
    separator_ = "\n";
  } else if (options.documentSeparator) {
    TANDEM_ASSERT(!options.documentSeparator->empty(), "a separator has at least one byte");
    kind_ = Kind::separator;
    separator_ = *options.documentSeparator;
  } else if (options.mayCutDocuments) {
    kind_ = Kind::cut;
  }
}

std::int64_t RecordBoundary::firstAtOrAfter(std::int64_t offset) const {
  if (offset <= 0) return 0;
  if (offset >= file_.bytes) return file_.bytes;
  const auto length = static_cast<std::int64_t>(separator_.size());
  const std::int64_t context = kind_ == Kind::cut ? 2 : length - 1;
  const std::int64_t from = std::max<std::int64_t>(0, offset - context);
  const auto wanted = static_cast<std::size_t>(offset - from);
  return searchFrom(file_, from, [&](std::string_view text) -> std::optional<std::size_t> {
    if (kind_ == Kind::cut) {
      for (std::size_t at = wanted; at + 1 < text.size(); ++at) {
        if (isSafeCut(text, at)) return at;
      }
      return std::nullopt;
    }
    std::size_t free = 0;  // a separator that begins before this overlaps another one
    for (std::size_t at = text.find(separator_); at != std::string_view::npos; at = text.find(separator_, at + 1)) {
      if (at >= wanted && at >= free) return at + separator_.size();
      free = at + separator_.size();
    }
    return std::nullopt;
  });
}

std::optional<std::size_t> RecordBoundary::endOfLast(std::string_view text) const {
  if (kind_ == Kind::none) return std::nullopt;
  if (kind_ == Kind::cut) {
    for (std::size_t at = text.size(); at-- > 0;) {
      if (isSafeCut(text, at)) return at;
    }
    return std::nullopt;
  }
  if (separator_.size() == 1) {
    const std::size_t at = text.rfind(separator_);
    return at == std::string_view::npos ? std::nullopt : std::optional(at + 1);
  }
  std::optional<std::size_t> last;
  for (std::size_t at = text.find(separator_); at != std::string_view::npos; at = text.find(separator_, *last)) {
    last = at + separator_.size();
  }
  return last;
}

}  // namespace tandem::data::detail
