#include "apps/evaluate/text_stream.h"

#include <algorithm>

namespace tandem::evaluate {
namespace {

// Where the last character of a text begins if it is incomplete UTF-8, else the text's end.
std::size_t endOfWholeCharacters(std::string_view text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(4, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;  // in the middle of a character
    const std::size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    return length > back ? text.size() - back : text.size();
  }
  return text.size();
}

}  // namespace

void TextStream::append(std::string_view bytes) {
  if (stopped_) return;
  if (beginning_ == Beginning::withoutBlanks && text_.empty()) {
    bytes.remove_prefix(std::min(bytes.find_first_not_of(' '), bytes.size()));
  }
  const std::size_t before = text_.size();
  text_ += bytes;
  std::size_t cut = std::string::npos;
  for (const std::string& stop : stops_) {
    if (stop.empty()) continue;
    const std::size_t from = before >= stop.size() ? before - stop.size() + 1 : 0;
    cut = std::min(cut, text_.find(stop, from));
  }
  if (cut == std::string::npos) return;
  text_.resize(cut);
  stopped_ = true;
}

std::size_t TextStream::readyEnd() const {
  std::size_t end = endOfWholeCharacters(text_);
  for (const std::string& stop : stops_) {
    for (std::size_t length = std::min(stop.size(), text_.size()); length > 0; --length) {
      if (std::string_view(text_).substr(text_.size() - length) != std::string_view(stop).substr(0, length)) continue;
      end = std::min(end, text_.size() - length);
      break;
    }
  }
  return end;
}

std::string TextStream::takeReady() {
  const std::size_t end = std::max(shown_, stopped_ ? text_.size() : readyEnd());
  std::string ready = text_.substr(shown_, end - shown_);
  shown_ = end;
  return ready;
}

std::string TextStream::takeRest() {
  std::string rest = text_.substr(shown_);
  shown_ = text_.size();
  return rest;
}

}  // namespace tandem::evaluate
