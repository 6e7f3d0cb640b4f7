#include "common/tokenizer/detail/vocabulary.h"

#include <bit>

namespace tandem::tokenizer::detail {
namespace {

std::uint32_t upperHalf(std::uint64_t hash) { return static_cast<std::uint32_t>(hash >> 32); }

}  // namespace

Vocabulary::Vocabulary(const std::vector<Token>& tokens) {
  byteTokens_.fill(noToken);
  offsets_.push_back(0);
  slots_.resize(std::bit_ceil(2 * tokens.size() + 2));
  filter_.resize(std::bit_ceil(tokens.size() / 8 + 1));
  const std::size_t mask = slots_.size() - 1;
  for (TokenId id = 0; id < tokens.size(); ++id) {
    const Token& token = tokens[id];
    blob_ += token.bytes;
    offsets_.push_back(static_cast<std::int64_t>(blob_.size()));
    if (token.literal) continue;
    if (token.bytes.size() == 1) byteTokens_[static_cast<unsigned char>(token.bytes[0])] = id;
    const std::uint64_t hash = wordHash(token.bytes.data(), token.bytes.size());
    filter_[(hash >> 38) & (filter_.size() - 1)] |= std::uint64_t{1} << (hash >> 32 & 63);
    std::size_t place = hash & mask;
    while (slots_[place].id != noToken) place = (place + 1) & mask;
    slots_[place] = {upperHalf(hash), id};
  }
}

TokenId Vocabulary::find(std::string_view word) const {
  const std::uint64_t hash = wordHash(word.data(), word.size());
  if ((filter_[(hash >> 38) & (filter_.size() - 1)] >> (hash >> 32 & 63) & 1) == 0) return noToken;
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t place = hash & mask; slots_[place].id != noToken; place = (place + 1) & mask) {
    if (slots_[place].hash == upperHalf(hash) && bytes(slots_[place].id) == word) return slots_[place].id;
  }
  return noToken;
}

}  // namespace tandem::tokenizer::detail
