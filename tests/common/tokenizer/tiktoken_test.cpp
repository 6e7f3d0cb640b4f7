#include "common/tokenizer/tiktoken.h"

#include <gtest/gtest.h>

#include "common/tokenizer/tokenizer_json.h"
#include "golden.h"

namespace tandem::tokenizer {
namespace {

std::string line(std::string_view bytes, int rank) { return base64(bytes) + " " + std::to_string(rank) + "\n"; }

std::string refusal(const std::string& file) {
  return messageOf(base::ErrorKind::badData, [&] { fromTiktoken(file, Pattern::cl100k, "some.tiktoken"); });
}

void expectSays(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find("some.tiktoken"), std::string::npos) << message;
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST(Tiktoken, reachesEveryToken) {
  for (const auto& [patternName, data] : golden()["patterns"].items()) {
    const Tokenizer tokenizer = fromTiktoken(goldenTiktoken(patternName), parsePattern(patternName), patternName);
    for (TokenId id = 0; id + 1 < static_cast<TokenId>(tokenizer.vocabularySize()); ++id) {
      const auto words = splitWords(tokenizer.pattern(), tokenizer.tokenBytes(id));
      if (words.size() > 1) continue;
      EXPECT_EQ(tokenizer.encode(words[0]), std::vector<TokenId>{id}) << words[0];
    }
  }
}

TEST(Tiktoken, mergesByTheRankOfTheJoinedBytesWhateverTheirSplit) {
  // abc can only be made of a + bc, as bc comes before ab; ababa may be split in two ways that share its rank.
  std::string file;
  int rank = 0;
  for (const char* token : {"a", "b", "c", "d", "bc", "ab", "abc", "ba", "aba", "ababa"}) file += line(token, rank++);
  const Tokenizer tokenizer = fromTiktoken(file, Pattern::cl100k, "small");
  EXPECT_EQ(tokenizer.encode("abcd"), (std::vector<TokenId>{6, 3}));
  const Tokenizer again = fromJson(tokenizer.json(), "again");
  EXPECT_EQ(again.json(), tokenizer.json());
  for (const char* text : {"abcd", "abababa", "bababababc", "aabbabab"}) {
    EXPECT_EQ(again.encode(text), tokenizer.encode(text)) << text;
  }
}

TEST(Tiktoken, putsSpecialTokensBehindTheLastRank) {
  const Tokenizer tokenizer =
      fromTiktoken(line("a", 0) + line("b", 1), Pattern::gpt2, "small", {"<|endoftext|>", "<|pad|>"});
  EXPECT_EQ(tokenizer.vocabularySize(), 4);
  EXPECT_EQ(tokenizer.specialId("<|endoftext|>"), 2u);
  EXPECT_EQ(tokenizer.specialId("<|pad|>"), 3u);
  EXPECT_EQ(tokenizer.endToken(), 2u);
}

TEST(Tiktoken, namesTheByteThatHasNoToken) {
  const Tokenizer tokenizer = fromTiktoken(line("a", 0) + line("b", 1), Pattern::gpt2, "small");
  const std::string message = messageOf(base::ErrorKind::badData, [&] { tokenizer.encode("abz"); });
  EXPECT_NE(message.find("0x7A"), std::string::npos) << message;
}

TEST(Tiktoken, readsLinesThatEndWithCarriageReturns) {
  EXPECT_EQ(fromTiktoken(base64("a") + " 0\r\n" + base64("b") + " 1\r\n\n", Pattern::gpt2, "small").vocabularySize(),
            3);
}

// By the square of its length it would take hours.
TEST(Tiktoken, aHugeTokenTakesNoTime) {
  const std::string text = line("a", 0) + line("aa", 1) + line(std::string(3000000, 'a'), 2);
  EXPECT_EQ(fromTiktoken(text, Pattern::gpt2, "small").definition().merges.size(), 1u);
}

TEST(Tiktoken, malformedFilesAreRefusedWithTheLine) {
  expectSays(refusal(line("a", 0) + "nothing\n"), "line 2");
  expectSays(refusal("YQ== x\n"), "line 1");
  expectSays(refusal("YQ== 0 1\n"), "line 1");
  expectSays(refusal("YQ== -1\n"), "line 1");
  expectSays(refusal("Y*== 0\n"), "line 1");
  expectSays(refusal("YQ= 0\n"), "line 1");
  expectSays(refusal(" 0\n"), "line 1");
  expectSays(refusal(line("a", 0) + line("b", 0)), "line 2");
  expectSays(refusal(line("a", 0) + line("b", 2)), "rank 1");
  expectSays(refusal(line("a", 0) + line("a", 1)), "same bytes");
  expectSays(refusal(""), "no token");
}

}  // namespace
}  // namespace tandem::tokenizer
