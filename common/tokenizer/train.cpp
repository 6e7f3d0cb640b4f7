#include "common/tokenizer/train.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "common/base/error.h"
#include "common/tokenizer/detail/pair_learner.h"

namespace tandem::tokenizer {
namespace {

using base::Error;
using base::ErrorKind;

void checkOptions(const WordCounts& counts, const TrainOptions& options) {
  std::unordered_set<std::string> seen;
  for (const std::string& special : options.specialTokens) {
    if (special.empty()) throw Error(ErrorKind::usage, "a special token is empty; give each some text");
    if (!seen.insert(special).second) {
      throw Error(ErrorKind::usage, "the special token '" + special + "' is given twice");
    }
  }
  const std::int64_t least = 256 + static_cast<std::int64_t>(options.specialTokens.size());
  if (options.vocabularySize < least) {
    throw Error(ErrorKind::usage, "a vocabulary of " + std::to_string(options.vocabularySize) +
                                      " tokens has no room for the 256 bytes and " +
                                      std::to_string(options.specialTokens.size()) +
                                      " special tokens; the smallest size is " + std::to_string(least));
  }
  constexpr std::int64_t most = 0x7FFFFFFF;
  if (options.vocabularySize > most) {
    throw Error(ErrorKind::usage, "a vocabulary of " + std::to_string(options.vocabularySize) +
                                      " tokens is too large; the largest is " + std::to_string(most));
  }
  if (counts.words() == 0) throw Error(ErrorKind::badData, "there is no text to train a tokenizer on");
}

}  // namespace

Tokenizer learnMerges(const WordCounts& counts, const TrainOptions& options) {
  checkOptions(counts, options);
  Definition definition;
  definition.pattern = options.pattern;
  definition.normalizesToC = options.normalizesToC;
  std::unordered_map<std::string, TokenId> idOf;
  for (int byte = 0; byte < 256; ++byte) {
    definition.tokens.push_back({std::string(1, static_cast<char>(byte)), false});
    idOf.emplace(definition.tokens.back().bytes, static_cast<TokenId>(byte));
  }
  detail::PairLearner learner(counts);
  const std::size_t wanted = static_cast<std::size_t>(options.vocabularySize) - options.specialTokens.size();
  while (definition.tokens.size() < wanted) {
    const auto best = learner.takeBest();
    if (!best || best->count < options.minimumCount) break;
    const std::string bytes = definition.tokens[best->left].bytes + definition.tokens[best->right].bytes;
    const auto [known, isNew] = idOf.emplace(bytes, static_cast<TokenId>(definition.tokens.size()));
    if (isNew) definition.tokens.push_back({bytes, false});
    definition.merges.push_back({best->left, best->right, known->second});
    learner.join(*best, known->second, static_cast<std::int64_t>(bytes.size()));
  }
  for (const std::string& special : options.specialTokens) {
    definition.addedTokens.push_back({static_cast<TokenId>(definition.tokens.size()), true, false});
    definition.tokens.push_back({special, true});
  }
  return Tokenizer(std::move(definition), "the trained tokenizer");
}

Tokenizer trainBpe(const DocumentSource& source, const TrainOptions& options, int threads) {
  return learnMerges(countWords(source, options.pattern, options.normalizesToC, threads), options);
}

}  // namespace tandem::tokenizer
