#include "common/tokenizer/detail/added_token_finder.h"

#include <algorithm>

#include "common/base/error.h"

namespace tandem::tokenizer::detail {

void AddedTokenFinder::add(std::string content, TokenId id, bool special) {
  TANDEM_ASSERT(!content.empty(), "an added token without content");
  starts_[static_cast<unsigned char>(content[0])] = true;
  const auto place = std::lower_bound(entries_.begin(), entries_.end(), content,
                                      [](const Entry& entry, const std::string& c) { return entry.content < c; });
  entries_.insert(place, {std::move(content), id, special});
  hasOrdinary_ = hasOrdinary_ || !special;
}

const AddedTokenFinder::Entry* AddedTokenFinder::longestAt(std::string_view text) const {
  // Narrows the sorted entries byte by byte to those that share the text's beginning; an entry that ends there is the
  // first of them.
  const Entry* longest = nullptr;
  auto low = entries_.begin();
  auto high = entries_.end();
  for (std::size_t depth = 0; depth < text.size(); ++depth) {
    const auto byteAt = [depth](const Entry& entry) { return static_cast<unsigned char>(entry.content[depth]); };
    const auto byte = static_cast<unsigned char>(text[depth]);
    low = std::partition_point(low, high, [&](const Entry& entry) { return byteAt(entry) < byte; });
    high = std::partition_point(low, high, [&](const Entry& entry) { return byteAt(entry) == byte; });
    if (low == high) break;
    if (low->content.size() == depth + 1) {
      longest = &*low;
      if (++low == high) break;
    }
  }
  return longest;
}

AddedTokenFinder::Match AddedTokenFinder::find(std::string_view text, std::size_t from) const {
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    if (!starts_[static_cast<unsigned char>(text[begin])]) continue;
    if (const Entry* entry = longestAt(text.substr(begin)))
      return {begin, entry->content.size(), entry->id, entry->special};
  }
  return {};
}

}  // namespace tandem::tokenizer::detail
