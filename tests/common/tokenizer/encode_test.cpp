#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "common/base/random.h"
#include "common/tokenizer/detail/normalizer.h"
#include "common/tokenizer/encoder.h"
#include "common/tokenizer/tiktoken.h"
#include "common/tokenizer/tokenizer_json.h"
#include "golden.h"

namespace tandem::tokenizer {
namespace {

using Ids = std::vector<TokenId>;

Tokenizer llama() { return fromJson(goldenTokenizer("llama3").dump(), "golden"); }

std::string mixedText() {
  std::string text;
  for (const auto& piece : golden()["texts"]) text += piece.get<std::string>() + " ";
  return text;
}

// Byte-pair merging as its definition says, pair by pair over the whole word.
Ids mergedNaively(const Definition& definition, std::string_view word) {
  std::map<std::pair<TokenId, TokenId>, std::size_t> ranks;
  for (std::size_t i = 0; i < definition.merges.size(); ++i) {
    ranks.emplace(std::pair(definition.merges[i].left, definition.merges[i].right), i);
  }
  Ids ids;
  for (const char c : word) {
    for (TokenId id = 0; id < definition.tokens.size(); ++id) {
      if (definition.tokens[id].bytes == std::string(1, c)) ids.push_back(id);
    }
  }
  while (true) {
    std::size_t best = definition.merges.size();
    std::size_t place = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = ranks.find({ids[i], ids[i + 1]});
      if (found != ranks.end() && found->second < best) {
        best = found->second;
        place = i;
      }
    }
    if (best == definition.merges.size()) return ids;
    ids[place] = definition.merges[best].result;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
}

TEST(Encode, givesTheIdsOfHuggingFaceTokenizers) {
  for (const auto& [patternName, expected] : golden()["patterns"].items()) {
    const Tokenizer tokenizer = fromJson(expected["tokenizer_json"].get<std::string>(), patternName);
    Encoder encoder(tokenizer);
    for (std::size_t i = 0; i < golden()["texts"].size(); ++i) {
      const auto text = golden()["texts"][i].get<std::string>();
      Ids ids;
      encoder.encode(text, ids);
      EXPECT_EQ(ids, expected["tokenizers_ids"][i].get<Ids>()) << patternName << ": " << text;
    }
  }
}

TEST(Encode, givesTheIdsOfTiktoken) {
  for (const auto& [patternName, expected] : golden()["patterns"].items()) {
    const Tokenizer tokenizer = fromTiktoken(goldenTiktoken(patternName), parsePattern(patternName), patternName);
    for (std::size_t i = 0; i < golden()["texts"].size(); ++i) {
      const auto text = golden()["texts"][i].get<std::string>();
      EXPECT_EQ(tokenizer.encode(text), expected["tiktoken_ids"][i].get<Ids>()) << patternName << ": " << text;
    }
  }
}

TEST(Encode, givesTheIdsOfHuggingFaceTokenizersForOddVocabulariesAndAddedTokens) {
  for (const auto& odd : golden()["odd_tokenizers"]) {
    const Tokenizer tokenizer = fromJson(odd["tokenizer_json"].get<std::string>(), "odd");
    const Tokenizer again = fromJson(tokenizer.json(), "again");
    const auto text = odd["text"].get<std::string>();
    for (const Tokenizer& one : {tokenizer, again}) {
      EXPECT_EQ(one.encode(text), odd["ids"]["plain"].get<Ids>());
      EXPECT_EQ(one.encode(text, {.parseSpecial = true}), odd["ids"]["special"].get<Ids>());
    }
  }
}

TEST(Encode, losesNoByte) {
  const Tokenizer tokenizer = llama();
  for (const std::string& text : hardBytes()) EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
}

TEST(Encode, mergesLongWordsAsShortOnes) {
  const Tokenizer tokenizer = llama();
  base::RandomStream random(5, 2);
  for (std::size_t size = 1; size <= 200; size += 7) {
    std::string word;
    while (word.size() < size) word += "abehst"[random.nextBelow(6)];
    EXPECT_EQ(tokenizer.encode(word), mergedNaively(tokenizer.definition(), word)) << word;
  }
}

TEST(Encode, needsNearlyLinearTimeForAWordWithoutEnd) {
  // Quadratic merging would need hours.
  const Tokenizer tokenizer = llama();
  for (const char letter : {'a', ' ', '-'}) {
    const std::string word(1'000'000, letter);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(word)), word);
  }
}

TEST(Encode, givesTheSameIdsWhateverTheEncoderHasSeen) {
  const Tokenizer tokenizer = llama();
  const std::string text = mixedText();
  Encoder big(tokenizer);
  Encoder tiny(tokenizer, 0);  // a line of memory: nearly every word is computed anew
  Ids once, again, withTiny;
  big.encode(text, once);
  big.encode(text, again);
  tiny.encode(text, withTiny);
  EXPECT_EQ(again, once);
  EXPECT_EQ(withTiny, once);
  EXPECT_EQ(tokenizer.encode(text), once);
}

TEST(Encode, appendsToWhatIsThere) {
  const Tokenizer tokenizer = llama();
  Ids ids = {7};
  tokenizer.encode("the", ids);
  Ids expected = tokenizer.encode("the");
  expected.insert(expected.begin(), 7);
  EXPECT_EQ(ids, expected);
}

TEST(Encode, worksOnManyThreadsWithOneTokenizer) {
  const Tokenizer tokenizer = llama();
  const std::string text = mixedText();
  const Ids expected = tokenizer.encode(text);
  std::vector<Ids> results(4);
  std::vector<std::thread> threads;
  for (Ids& result : results) {
    threads.emplace_back([&result, &text, tokenizer] {
      Encoder encoder(tokenizer);
      encoder.encode(text, result);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Ids& result : results) EXPECT_EQ(result, expected);
}

TEST(Encode, takesTheTextOfASpecialTokenForTextUnlessAsked) {
  const Tokenizer tokenizer = llama();
  const TokenId end = tokenizer.specialId("<|endoftext|>").value();
  const std::string text = "a<|endoftext|>b<|endoftext|><|endof<|endoftext|>";
  const Ids plain = tokenizer.encode(text);
  EXPECT_EQ(std::count(plain.begin(), plain.end(), end), 0);
  EXPECT_EQ(tokenizer.decode(plain), text);
  const Ids parsed = tokenizer.encode(text, {.parseSpecial = true});
  EXPECT_EQ(std::count(parsed.begin(), parsed.end(), end), 3);
  EXPECT_EQ(tokenizer.decode(parsed), text);
}

TEST(Encode, findsTheLongestOfSeveralAddedTokens) {
  auto json = goldenTokenizer("llama3");
  const auto size = static_cast<TokenId>(llama().vocabularySize());
  for (const auto& [content, special] :
       std::map<std::string, bool>{{"<|end|>", true}, {"<|end|>!", true}, {"<|", false}}) {
    json["added_tokens"].push_back({{"id", size + json["added_tokens"].size() - 1},
                                    {"content", content},
                                    {"special", special},
                                    {"normalized", false}});
  }
  const Tokenizer tokenizer = fromJson(json.dump(), "changed");
  const Ids parsed = tokenizer.encode("<|end|>!<|end|><|<|en", {.parseSpecial = true});
  const TokenId shortEnd = tokenizer.specialId("<|end|>").value();
  const TokenId longEnd = tokenizer.specialId("<|end|>!").value();
  const TokenId opening = tokenizer.specialId("<|").value();
  ASSERT_GE(parsed.size(), 4u);
  EXPECT_EQ((Ids{parsed[0], parsed[1], parsed[2], parsed[3]}), (Ids{longEnd, shortEnd, opening, opening}));
  // One that is not special is always found, but not inside the text of a special one, as in Hugging Face tokenizers.
  EXPECT_EQ(tokenizer.encode("<|en")[0], opening);
  const Ids unparsed = tokenizer.encode("<|end|>");
  EXPECT_EQ(std::count(unparsed.begin(), unparsed.end(), opening), 0);
  EXPECT_TRUE(tokenizer.isSpecial(shortEnd));
  EXPECT_FALSE(tokenizer.isSpecial(opening));
}

TEST(Encode, usesTheUnknownTokenForAByteWithoutToken) {
  auto json = goldenTokenizer("llama3");
  const TokenId unknown = llama().specialId("<|endoftext|>").value();
  auto& vocabulary = json["model"]["vocab"];
  // The last byte without a merge gives its id to the last token, so that no hole is left.
  json["model"]["unk_token"] = "<|endoftext|>";
  json["model"]["merges"] = nlohmann::json::array();
  nlohmann::json bytesOnly;
  TokenId next = 1;
  for (const auto& [key, id] : vocabulary.items()) {
    if (id.get<TokenId>() <= 256 && key != "q" && key != "<|endoftext|>") bytesOnly[key] = next++;
  }
  bytesOnly["<|endoftext|>"] = 0;
  vocabulary = bytesOnly;
  const Tokenizer tokenizer = fromJson(json.dump(), "without q");
  const Ids ids = tokenizer.encode("aqqb");
  ASSERT_EQ(ids.size(), 4u);
  EXPECT_EQ(ids[1], unknown);
  EXPECT_EQ(ids[2], unknown);
  EXPECT_EQ(tokenizer.decode(ids), "a<|endoftext|><|endoftext|>b");

  json["model"]["fuse_unk"] = true;
  EXPECT_EQ(fromJson(json.dump(), "fusing").encode("aqqb").size(), 3u);

  json["model"]["unk_token"] = nullptr;
  const Tokenizer strict = fromJson(json.dump(), "strict");
  const std::string message = messageOf(base::ErrorKind::badData, [&] { strict.encode("aqb"); });
  EXPECT_NE(message.find("0x71"), std::string::npos) << message;
  EXPECT_EQ(strict.decode(strict.encode("abc")), "abc");
}

TEST(Encode, normalizesToFormCWhereTheTokenizerSaysSo) {
  EXPECT_EQ(detail::normalizeToC("e\u0301 \u1100\u1161\u11A8 q\u0307\u0323"), "\u00e9 \uac01 q\u0323\u0307");
  EXPECT_EQ(detail::normalizeToC("A\u030a\u212b\u2126"), "\u00c5\u00c5\u03a9");
  // Bytes that are no characters stay, and nothing is joined over them.
  EXPECT_EQ(detail::normalizeToC("e\xFF\u0301x\xCC"), "e\xFF\u0301x\xCC");
  for (const std::string& text : hardBytes()) {
    const std::string once = detail::normalizeToC(text);
    EXPECT_EQ(detail::normalizeToC(once), once);
  }
  const Tokenizer tokenizer = fromJson(goldenTokenizer("qwen2").dump(), "qwen2");
  EXPECT_EQ(tokenizer.encode("e\u0301t"), tokenizer.encode("\u00e9t"));
  EXPECT_NE(llama().encode("e\u0301t"), llama().encode("\u00e9t"));
}

TEST(Encode, normalizesManyMarksInNearlyLinearTime) {
  std::string marks = "a";
  for (int i = 0; i < 200'000; ++i) marks += i % 2 == 0 ? "\u0301" : "\u0323";
  const std::string normal = detail::normalizeToC(marks);
  EXPECT_TRUE(normal.starts_with("\u1ea1\u0323\u0323"));  // the marks below come first, and one joins the letter
  EXPECT_TRUE(normal.ends_with("\u0301\u0301"));
  EXPECT_EQ(normal.size(), marks.size());
}

TEST(Decode, refusesAnIdOutsideTheVocabulary) {
  const Tokenizer tokenizer = llama();
  const Ids ids = {static_cast<TokenId>(tokenizer.vocabularySize())};
  const std::string message = messageOf(base::ErrorKind::badData, [&] { tokenizer.decode(ids); });
  EXPECT_NE(message.find(std::to_string(ids[0])), std::string::npos) << message;
}

}  // namespace
}  // namespace tandem::tokenizer
