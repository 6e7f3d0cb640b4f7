#include "common/tokenizer/pattern.h"

#include <gtest/gtest.h>

#include "golden.h"

namespace tandem::tokenizer {
namespace {

using Words = std::vector<std::string_view>;

constexpr Pattern patterns[] = {Pattern::gpt2,   Pattern::cl100k, Pattern::o200k,
                                Pattern::llama3, Pattern::qwen2,  Pattern::gpt2Digits};

TEST(Pattern, cutsAsTheRegularExpressionsDo) {
  for (const auto& [patternName, expected] : golden()["patterns"].items()) {
    for (std::size_t i = 0; i < golden()["texts"].size(); ++i) {
      const auto text = golden()["texts"][i].get<std::string>();
      std::vector<std::size_t> sizes;
      for (const std::string_view word : splitWords(parsePattern(patternName), text)) sizes.push_back(word.size());
      EXPECT_EQ(sizes, expected["splits"][i].get<std::vector<std::size_t>>()) << patternName << ": " << text;
    }
  }
}

TEST(Pattern, wordsTogetherAreTheText) {
  for (const Pattern pattern : patterns) {
    for (const std::string& text : hardBytes()) {
      std::string joined;
      for (const std::string_view word : splitWords(pattern, text)) {
        EXPECT_FALSE(word.empty());
        joined += word;
      }
      EXPECT_EQ(joined, text) << name(pattern);
    }
  }
}

TEST(Pattern, takesAnIllFormedByteForASymbol) {
  EXPECT_EQ(splitWords(Pattern::gpt2, "ab\xFF cd"), (Words{"ab", "\xFF", " cd"}));
  EXPECT_EQ(splitWords(Pattern::gpt2, "a \xC3(!\xE2\x82z"), (Words{"a", " \xC3(!\xE2\x82", "z"}));
  EXPECT_EQ(splitWords(Pattern::llama3, "\xFFzebra"), (Words{"\xFFzebra"}));
  // Overlong forms, surrogates and values beyond the last character are ill-formed; so is what is cut by the end.
  EXPECT_EQ(splitWords(Pattern::gpt2,
                       "\xC1\x81\xED\xA0\x80\xF4\x90\x80\x80"
                       "A"),
            (Words{"\xC1\x81\xED\xA0\x80\xF4\x90\x80\x80", "A"}));
  EXPECT_EQ(splitWords(Pattern::gpt2, "A\xE4\xB8"), (Words{"A", "\xE4\xB8"}));
}

TEST(Pattern, gpt2WithDigitsCutsEveryDigitOffFirst) {
  EXPECT_EQ(splitWords(Pattern::gpt2Digits, "a 12 x  3"), (Words{"a", " ", "1", "2", " x", "  ", "3"}));
  EXPECT_EQ(splitWords(Pattern::gpt2Digits, "it's 1's  b"), (Words{"it", "'s", " ", "1", "'s", " ", " b"}));
}

TEST(Pattern, needsTimeLinearInRunsWithoutEnd) {
  // A scanner that goes back to the begin of a run for each of its characters would need hours.
  constexpr std::size_t size = 2'000'000;
  for (const Pattern pattern : patterns) {
    for (const char* unit : {"a", "A", " ", "\n", " \n", "\xCC\x81",
                             "\xE4\xB8\xAD"
                             "A",
                             "'", "1", "\xFF", "/\n"}) {
      std::string text;
      while (text.size() < size) text += unit;
      std::size_t total = 0;
      for (const std::string_view word : splitWords(pattern, text)) total += word.size();
      EXPECT_EQ(total, text.size());
    }
  }
}

TEST(Pattern, isFoundByItsName) {
  for (const Pattern pattern : patterns) EXPECT_EQ(parsePattern(name(pattern)), pattern);
  const std::string message = messageOf(base::ErrorKind::usage, [] { parsePattern("gpt5"); });
  EXPECT_NE(message.find("gpt5"), std::string::npos);
  EXPECT_NE(message.find("o200k"), std::string::npos) << message;
}

}  // namespace
}  // namespace tandem::tokenizer
