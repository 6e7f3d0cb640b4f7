#include "common/tokenizer/tiktoken.h"

#include <charconv>
#include <optional>
#include <set>
#include <unordered_map>

#include "common/base/error.h"
#include "common/tokenizer/detail/vocabulary.h"

namespace tandem::tokenizer {
namespace {

int base64Digit(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '+') return 62;
  if (c == '/') return 63;
  return -1;
}

std::optional<std::string> decodeBase64(std::string_view text) {
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  std::string bytes;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text.substr(0, text.size() - padding)) {
    const int digit = base64Digit(c);
    if (digit < 0) return std::nullopt;
    bits = (bits << 6) | static_cast<std::uint32_t>(digit);
    count += 6;
    if (count >= 8) {
      count -= 8;
      bytes += static_cast<char>((bits >> count) & 255);
    }
  }
  return bytes;
}

struct RankedLine {
  std::string bytes;
  std::uint32_t rank;
};

std::optional<RankedLine> parseLine(std::string_view line) {
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  const auto bytes = decodeBase64(line.substr(0, space));
  const std::string_view number = line.substr(space + 1);
  std::uint32_t rank = 0;
  const auto parsed = std::from_chars(number.data(), number.data() + number.size(), rank);
  if (!bytes || parsed.ec != std::errc() || parsed.ptr != number.data() + number.size()) return std::nullopt;
  return RankedLine{*bytes, rank};
}

// Tokens by rank.
std::vector<Token> readTokens(std::string_view text, const std::string& origin) {
  std::unordered_map<std::uint32_t, std::string> ofRank;
  std::int64_t lineNumber = 0;
  const auto fail = [&](const std::string& reason) {
    throw base::Error(base::ErrorKind::badData, origin + ": line " + std::to_string(lineNumber) + " " + reason);
  };
  while (!text.empty()) {
    ++lineNumber;
    const std::size_t newline = text.find('\n');
    std::string_view line = text.substr(0, newline);
    text.remove_prefix(newline == std::string_view::npos ? text.size() : newline + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    auto parsed = parseLine(line);
    if (!parsed) fail("is not a token in base64, a space and a rank");
    if (!ofRank.emplace(parsed->rank, std::move(parsed->bytes)).second) {
      fail("has the rank " + std::to_string(parsed->rank) + ", which is there already");
    }
  }
  if (ofRank.empty()) throw base::Error(base::ErrorKind::badData, origin + ": there is no token in the file");
  std::vector<Token> tokens(ofRank.size());
  for (std::uint32_t rank = 0; rank < tokens.size(); ++rank) {
    const auto found = ofRank.find(rank);
    if (found == ofRank.end()) {
      throw base::Error(base::ErrorKind::badData, origin + ": no line has the rank " + std::to_string(rank) +
                                                      ", though there are " + std::to_string(tokens.size()) +
                                                      " tokens; the file is damaged or cut");
    }
    tokens[rank].bytes = std::move(found->second);
  }
  return tokens;
}

}  // namespace

Tokenizer fromTiktoken(std::string_view text, Pattern pattern, const std::string& origin,
                       const std::vector<std::string>& specialTokens) {
  Definition definition;
  definition.pattern = pattern;
  definition.ignoresMerges = true;
  definition.ranksByToken = true;
  definition.tokens = readTokens(text, origin);
  const detail::Vocabulary vocabulary(definition.tokens);
  // Only cuts into lengths that tokens have can give tokens: a huge one takes no time by the square of its length.
  std::set<std::size_t> lengths;
  for (const Token& token : definition.tokens) lengths.insert(token.bytes.size());
  for (TokenId id = 0; id < definition.tokens.size(); ++id) {
    const std::string_view bytes = definition.tokens[id].bytes;
    for (const std::size_t cut : lengths) {
      if (cut >= bytes.size()) break;
      if (!lengths.contains(bytes.size() - cut)) continue;
      const TokenId left = vocabulary.find(bytes.substr(0, cut));
      const TokenId right = vocabulary.find(bytes.substr(cut));
      if (left != detail::noToken && right != detail::noToken) definition.merges.push_back({left, right, id});
    }
  }
  for (const std::string& special : specialTokens) {
    definition.addedTokens.push_back({static_cast<TokenId>(definition.tokens.size()), true, false});
    definition.tokens.push_back({special, true});
  }
  return Tokenizer(std::move(definition), origin);
}

}  // namespace tandem::tokenizer
