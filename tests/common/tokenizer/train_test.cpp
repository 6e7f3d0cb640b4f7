#include "common/tokenizer/train.h"

#include <gtest/gtest.h>

#include <map>
#include <stdexcept>

#include "common/base/random.h"
#include "common/tokenizer/tokenizer_json.h"
#include "golden.h"

namespace tandem::tokenizer {
namespace {

std::vector<std::string> documents(std::uint64_t seed) {
  base::RandomStream random(seed, 4);
  std::vector<std::string> made;
  for (int i = 0; i < 60; ++i) {
    std::string text;
    for (auto words = 1 + random.nextBelow(60); words > 0; --words) {
      for (auto letters = 1 + random.nextBelow(9); letters > 0; --letters) text += "aaabcé"[random.nextBelow(7) % 6];
      text += random.nextBelow(5) == 0 ? "\n" : " ";
    }
    made.push_back(text);
  }
  for (const auto& text : golden()["texts"]) made.push_back(text.get<std::string>());
  return made;
}

DocumentSource sourceOf(const std::vector<std::string>& texts) {
  return [&texts, next = std::size_t{0}](std::string& document) mutable {
    if (next == texts.size()) return false;
    document = texts[next++];
    return true;
  };
}

TrainOptions options(std::int64_t size) {
  TrainOptions made;
  made.vocabularySize = size;
  made.pattern = Pattern::llama3;
  return made;
}

// Training as its definition says: all pairs counted anew before each merge.
std::vector<Merge> trainedNaively(const std::vector<std::string>& texts, const TrainOptions& options) {
  std::map<std::string, std::int64_t> counts;
  for (const std::string& text : texts) {
    for (const std::string_view word : splitWords(options.pattern, text)) ++counts[std::string(word)];
  }
  std::vector<std::pair<std::vector<TokenId>, std::int64_t>> words;
  for (const auto& [word, count] : counts) {
    words.emplace_back();
    words.back().second = count;
    for (const char c : word) words.back().first.push_back(static_cast<unsigned char>(c));
  }
  std::map<std::string, TokenId> idOf;
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) {
    tokens.emplace_back(1, static_cast<char>(byte));
    idOf[tokens.back()] = static_cast<TokenId>(byte);
  }
  std::vector<Merge> merges;
  while (static_cast<std::int64_t>(tokens.size() + options.specialTokens.size()) < options.vocabularySize) {
    std::map<std::pair<TokenId, TokenId>, std::int64_t> pairs;
    for (const auto& [ids, count] : words) {
      for (std::size_t i = 0; i + 1 < ids.size(); ++i) pairs[{ids[i], ids[i + 1]}] += count;
    }
    std::pair<TokenId, TokenId> best;
    std::int64_t most = options.minimumCount - 1;
    for (const auto& [pair, count] : pairs) {
      if (count > most) std::tie(best, most) = std::pair(pair, count);
    }
    if (most < options.minimumCount) break;
    const std::string bytes = tokens[best.first] + tokens[best.second];
    const auto [known, isNew] = idOf.emplace(bytes, static_cast<TokenId>(tokens.size()));
    if (isNew) tokens.push_back(bytes);
    merges.push_back({best.first, best.second, known->second});
    for (auto& [ids, count] : words) {
      for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
        if (ids[i] != best.first || ids[i + 1] != best.second) continue;
        ids[i] = known->second;
        ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      }
    }
  }
  return merges;
}

TEST(Train, learnsWhatTheDefinitionSays) {
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    const auto texts = documents(seed);
    const TrainOptions wanted = options(700);
    const Tokenizer tokenizer = trainBpe(sourceOf(texts), wanted, 1);
    const auto expected = trainedNaively(texts, wanted);
    const auto& merges = tokenizer.definition().merges;
    ASSERT_EQ(merges.size(), expected.size());
    for (std::size_t i = 0; i < merges.size(); ++i) {
      ASSERT_EQ(std::tie(merges[i].left, merges[i].right, merges[i].result),
                std::tie(expected[i].left, expected[i].right, expected[i].result))
          << "merge " << i;
    }
  }
}

TEST(Train, theSameTokenizerAtAnyThreadCountAndSplit) {
  const auto texts = documents(4);
  const std::string expected = trainBpe(sourceOf(texts), options(600), 1).json();
  for (const int threads : {2, 3, 8}) EXPECT_EQ(trainBpe(sourceOf(texts), options(600), threads).json(), expected);
  for (const std::size_t ranks : {2u, 3u, 5u}) {
    WordCounts total;
    for (std::size_t rank = ranks; rank-- > 0;) {
      WordCounts part;
      for (std::size_t i = rank; i < texts.size(); i += ranks) part.addText(texts[i], Pattern::llama3);
      total.merge(WordCounts::deserialize(part.serialize()));
    }
    EXPECT_EQ(learnMerges(total, options(600)).json(), expected);
  }
}

TEST(Train, equallyFrequentPairsAreJoinedFromTheSmallestIdsOn) {
  WordCounts counts;
  for (const char* word : {"cd", "ab", "bc", "ba"}) counts.add(word, 3);
  const auto merges = learnMerges(counts, options(260)).definition().merges;
  ASSERT_EQ(merges.size(), 3u);
  EXPECT_EQ(merges[0].left, TokenId{'a'});
  EXPECT_EQ(merges[1].left, TokenId{'b'});
  EXPECT_EQ(merges[1].right, TokenId{'a'});
  EXPECT_EQ(merges[2].left, TokenId{'b'});
  EXPECT_EQ(merges[2].right, TokenId{'c'});
}

TEST(Train, givesBytesThenJoinedThenSpecialTokens) {
  WordCounts counts;
  counts.add("abab", 10);
  TrainOptions wanted = options(1000);
  wanted.specialTokens = {"<|endoftext|>", "<|im_start|>"};
  const Tokenizer tokenizer = learnMerges(counts, wanted);
  // No pair is left after ab and abab, so the vocabulary stays smaller than asked for.
  EXPECT_EQ(tokenizer.vocabularySize(), 260);
  EXPECT_EQ(tokenizer.tokenBytes(256), "ab");
  EXPECT_EQ(tokenizer.tokenBytes(257), "abab");
  EXPECT_EQ(tokenizer.specialId("<|endoftext|>"), 258u);
  EXPECT_EQ(tokenizer.specialId("<|im_start|>"), 259u);
  EXPECT_EQ(fromJson(tokenizer.json(), "again").hash(), tokenizer.hash());
}

TEST(Train, leavesPairsAloneThatComeTooSeldom) {
  WordCounts counts;
  counts.add("ab", 5);
  counts.add("cd", 4);
  TrainOptions wanted = options(1000);
  wanted.minimumCount = 5;
  EXPECT_EQ(learnMerges(counts, wanted).definition().merges.size(), 1u);
}

TEST(Train, copesWithOneWordWithoutEnd) {
  WordCounts counts;
  counts.addText(std::string(1'000'000, 'a'), Pattern::gpt2);
  const Tokenizer tokenizer = learnMerges(counts, options(300));
  EXPECT_EQ(tokenizer.tokenBytes(256), "aa");
  EXPECT_EQ(tokenizer.tokenBytes(257), "aaaa");
}

TEST(Train, normalizesWhatItCountsWhenAsked) {
  const std::vector<std::string> texts(10, "e\u0301e\u0301");
  TrainOptions wanted = options(258);
  wanted.normalizesToC = true;
  const Tokenizer tokenizer = trainBpe(sourceOf(texts), wanted, 2);
  EXPECT_EQ(tokenizer.tokenBytes(256), "\u00e9");
  EXPECT_TRUE(fromJson(tokenizer.json(), "again").definition().normalizesToC);
}

TEST(Train, saysWhatIsWrongWithItsOptions) {
  WordCounts counts;
  counts.add("ab", 5);
  const auto usage = [&](const TrainOptions& wanted) {
    return messageOf(base::ErrorKind::usage, [&] { learnMerges(counts, wanted); });
  };
  EXPECT_NE(usage(options(256)).find("257"), std::string::npos);
  TrainOptions twice = options(300);
  twice.specialTokens = {"<a>", "<a>"};
  EXPECT_NE(usage(twice).find("<a>"), std::string::npos);
  twice.specialTokens = {""};
  EXPECT_NE(usage(twice).find("empty"), std::string::npos);
  messageOf(base::ErrorKind::badData, [&] { learnMerges(WordCounts(), options(300)); });
}

TEST(Train, aFailingSourceIsHeardOnAnyThread) {
  for (const int threads : {1, 4}) {
    int given = 0;
    const DocumentSource source = [&given](std::string& document) {
      if (++given == 20) throw base::Error(base::ErrorKind::badData, "line 20 is broken");
      document = "some text";
      return true;
    };
    EXPECT_EQ(messageOf(base::ErrorKind::badData, [&] { countWords(source, Pattern::gpt2, false, threads); }),
              "line 20 is broken");
  }
}

TEST(WordCounts, damagedBytesAreRefused) {
  WordCounts counts;
  counts.add("ab", 5);
  counts.add("cd", 6);
  const std::string bytes = counts.serialize();
  EXPECT_EQ(WordCounts::deserialize(bytes).serialize(), bytes);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    messageOf(base::ErrorKind::badData, [&] { WordCounts::deserialize(bytes.substr(0, size)); });
  }
  messageOf(base::ErrorKind::badData, [&] { WordCounts::deserialize(bytes + "x"); });
}

}  // namespace
}  // namespace tandem::tokenizer
