#include "common/data/corpus.h"

#include <gtest/gtest.h>

#include "common/base/hash.h"
#include "common/data/dataset.h"
#include "common/data/detail/boundaries.h"
#include "common/data/detail/ordered_pipeline.h"
#include "common/tokenizer/train.h"
#include "tests/common/data/expect_error.h"
#include "tests/common/data/temporary_folder.h"

namespace tandem::data {
namespace {

using base::ErrorKind;
using tokenizer::Pattern;
using tokenizer::TokenId;

tokenizer::Tokenizer smallTokenizer(Pattern pattern = Pattern::o200k) {
  tokenizer::WordCounts counts;
  for (int i = 0; i < 2; ++i) {
    counts.addText("the cat and the dog and the other cat sat on the mat, they said.\n", pattern);
  }
  return learnMerges(counts, {.vocabularySize = 300, .pattern = pattern, .specialTokens = {"<|endoftext|>"}});
}

class Corpus : public testing::Test {
 protected:
  EncodeSummary encode(const std::string& input, EncodeSettings settings, TextOptions text = {}) {
    const auto communicator = comm::makeSingleProcess();
    const std::string arguments[] = {input};
    const std::vector<TextFile> files = findTextFiles(arguments);
    if (settings.output.empty()) settings.output = folder_.path() / "out.h5";
    return encodeCorpus(*communicator, tokenizer_, files, text, settings, {});
  }
  std::vector<TokenId> tokensOf(const std::filesystem::path& path) {
    const Dataset dataset(path);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(dataset.tokenCount()));
    dataset.readTokens(0, tokens);
    return {tokens.begin(), tokens.end()};
  }

  TemporaryFolder folder_;
  tokenizer::Tokenizer tokenizer_ = smallTokenizer();
};

TEST_F(Corpus, conversationsAreWrittenDownByATemplateWithAMaskOnTheAnswers) {
  const std::string path = folder_.write("x.jsonl",
                                         "{\"prompt\": \"the cat\", \"completion\": \"sat\"}\n\n"
                                         "{\"text\": \"the dog\"}\n");
  const EncodeSummary summary = encode(path, {.chat = tokenizer::ChatTemplate::named("tandem")});
  const Dataset dataset(folder_.path() / "out.h5");
  EXPECT_EQ(dataset.description().chatTemplate, tokenizer::ChatTemplate::named("tandem").jinja());
  const std::vector<TokenId> tokens = tokensOf(dataset.path());
  const std::string mark = "<|endoftext|>";
  EXPECT_EQ(tokenizer_.decode(tokens), mark + "User: the cat\nAssistant: sat" + mark + mark + "the dog" + mark);
  ASSERT_TRUE(dataset.hasLossMask());
  std::vector<std::uint8_t> mask(tokens.size());
  dataset.readLossMask(0, mask);
  std::vector<TokenId> learned;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (mask[i] != 0) learned.push_back(tokens[i]);
  }
  EXPECT_EQ(tokenizer_.decode(learned), " sat" + mark + mark + "the dog" + mark);
  EXPECT_EQ(summary.documents, 2);
}

TEST_F(Corpus, aBadConversationIsNamedByItsLineOrSkipped) {
  const std::string path = folder_.write("x.jsonl",
                                         "{\"prompt\": \"the cat\", \"completion\": \"sat\"}\n"
                                         "{\"messages\": [{\"role\": \"user\", \"content\": \"alone\"}]}\n");
  const EncodeSettings settings{.chat = tokenizer::ChatTemplate::named("tandem")};
  expectError(ErrorKind::badData, {"x.jsonl", "line 2", "no assistant's turn"}, [&] { encode(path, settings); });
  const EncodeSummary summary = encode(path, settings, {.skipBadRecords = true});
  EXPECT_EQ(summary.documents, 1);
  EXPECT_EQ(summary.report.badRecords, 1);
  const std::string text = folder_.write("y.txt", "the cat");
  expectError(ErrorKind::usage, {"y.txt", ".jsonl"}, [&] { encode(text, settings); });
}

TEST_F(Corpus, aDocumentIsBeginTokenTextEndToken) {
  const std::string path = folder_.write("x.jsonl", "{\"text\": \"the cat\"}\n{\"text\": \"the dog\"}\n");
  const EncodeSummary summary = encode(path, {});
  const TokenId mark = *tokenizer_.endToken();
  std::vector<TokenId> expected = {mark};
  tokenizer_.encode("the cat", expected);
  expected.insert(expected.end(), {mark, mark});
  tokenizer_.encode("the dog", expected);
  expected.push_back(mark);
  EXPECT_EQ(tokensOf(folder_.path() / "out.h5"), expected);
  EXPECT_EQ(summary.documents, 2);
  EXPECT_EQ(summary.tokens, static_cast<std::int64_t>(expected.size()));
  EXPECT_EQ(summary.textBytes, 14);

  encode(path, {.addBegin = false, .addEnd = false});
  std::vector<TokenId> bare;
  tokenizer_.encode("the cat", bare);
  tokenizer_.encode("the dog", bare);
  EXPECT_EQ(tokensOf(folder_.path() / "out.h5"), bare);
}

TEST_F(Corpus, specialTokensInTheTextAreTextUnlessParsed) {
  const std::string path = folder_.write("x.txt", "the<|endoftext|>cat");
  encode(path, {.addBegin = false, .addEnd = false});
  const std::vector<TokenId> asText = tokensOf(folder_.path() / "out.h5");
  EXPECT_EQ(std::count(asText.begin(), asText.end(), *tokenizer_.endToken()), 0);
  EXPECT_EQ(tokenizer_.decode(asText), "the<|endoftext|>cat");
  encode(path, {.addBegin = false, .addEnd = false, .parseSpecial = true});
  const std::vector<TokenId> parsed = tokensOf(folder_.path() / "out.h5");
  EXPECT_EQ(std::count(parsed.begin(), parsed.end(), *tokenizer_.endToken()), 1);
}

TEST_F(Corpus, aLongDocumentThatIsEncodedInPartsComesOutAsOne) {
  std::string text;
  for (long i = 0; i < 100000; ++i) text += "the cat sat on the mat and " + std::to_string(i * 7919) + " dogs\n";
  const EncodeSummary summary = encode(folder_.write("x.txt", text), {});
  EXPECT_EQ(summary.documents, 1);
  std::vector<TokenId> expected = {*tokenizer_.beginToken()};
  tokenizer_.encode(text, expected);
  expected.push_back(*tokenizer_.endToken());
  EXPECT_TRUE(tokensOf(folder_.path() / "out.h5") == expected);
}

TEST_F(Corpus, threadsChangeNothing) {
  std::string lines;
  for (int i = 0; i < 60000; ++i)
    lines += "{\"text\": \"the cat and dog " + std::to_string(i * 7919L) + " sat on the mat\"}\n";
  const std::string path = folder_.write("x.jsonl", lines);
  encode(path, {.output = folder_.path() / "one.h5", .threads = 1});
  encode(path, {.output = folder_.path() / "four.h5", .threads = 4});
  EXPECT_EQ(tokensOf(folder_.path() / "one.h5"), tokensOf(folder_.path() / "four.h5"));
}

TEST_F(Corpus, validationTakesItsShareOfDocumentsBySeedAndEachGoesToOneSide) {
  std::string lines;
  for (int i = 0; i < 4000; ++i) lines += "{\"text\": \"document " + std::to_string(i) + "\"}\n";
  const std::string path = folder_.write("x.jsonl", lines);
  const auto side = [&](std::uint64_t seed) {
    const EncodeSummary summary =
        encode(path, {.validationFraction = 0.2, .validationOutput = folder_.path() / "val.h5", .seed = seed});
    EXPECT_EQ(summary.documents, 4000);
    EXPECT_NEAR(static_cast<double>(summary.validationDocuments), 800, 100);
    EXPECT_EQ(Dataset(folder_.path() / "val.h5").documentCount(), summary.validationDocuments);
    EXPECT_EQ(Dataset(folder_.path() / "out.h5").documentCount(), 4000 - summary.validationDocuments);
    EXPECT_EQ(Dataset(folder_.path() / "out.h5").description().textBytes +
                  Dataset(folder_.path() / "val.h5").description().textBytes,
              summary.textBytes);
    return tokensOf(folder_.path() / "val.h5");
  };
  const auto first = side(1);
  EXPECT_EQ(side(1), first);
  EXPECT_NE(side(2), first);
}

TEST_F(Corpus, withoutADocumentForEachSideThereIsNoOutput) {
  const std::string path = folder_.write("x.txt", "the cat");
  expectError(ErrorKind::badData, {"validation"},
              [&] { encode(path, {.validationFraction = 0.001, .validationOutput = folder_.path() / "val.h5"}); });
  for (const char* name : {"empty.txt", "empty.jsonl"}) {
    const std::string empty = folder_.write(name, "");
    expectError(ErrorKind::badData, {"no text"}, [&] { encode(empty, {}); });
  }
  const std::string bad = folder_.write("bad.jsonl", "{}\n{}\n");
  expectError(ErrorKind::badData, {"2 bad records", "bad.jsonl", "line 1"},
              [&] { encode(bad, {}, {.skipBadRecords = true}); });
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "out.h5"));
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "out.h5.partial"));
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "val.h5"));
}

TEST_F(Corpus, theDatasetSaysWhereItCameFrom) {
  const std::string path = folder_.write("x.txt", "the cat");
  encode(path, {});
  const Dataset dataset(folder_.path() / "out.h5");
  EXPECT_EQ(dataset.description().tokenizer, tokenizer_.json());
  EXPECT_EQ(dataset.description().tokenizerHash, tokenizer_.hash());
  EXPECT_EQ(dataset.description().sources,
            "[{\"bytes\":7,\"hash\":\"" + base::hashFile(path) + "\",\"name\":\"" + path + "\"}]");
}

TEST_F(Corpus, manySourcesAreListedToo) {
  for (int i = 0; i < 2000; ++i) folder_.write("many/" + std::string(40, 'x') + std::to_string(i) + ".txt", "the cat");
  encode((folder_.path() / "many").string(), {});
  EXPECT_GT(Dataset(folder_.path() / "out.h5").description().sources.size(), 200000u);
}

// A cut must be invisible: whatever stands around it, the words are those of the whole text.
TEST(SafeCuts, neverChangeTheWordsOfAnyPattern) {
  const std::vector<std::string> pieces = {"a",
                                           "B",
                                           "z's",
                                           " ",
                                           "  ",
                                           "\n",
                                           "\r\n",
                                           "\t",
                                           "1",
                                           "23",
                                           ".",
                                           "/",
                                           "'",
                                           "\"",
                                           "-",
                                           "\xc3\xa9",
                                           "\xd0\x96",
                                           "\xe6\xbc\xa2",
                                           "\xe3\x80\x80",
                                           "\xcc\x81",
                                           "'s",
                                           "'S",
                                           "\xff",
                                           "\xd0",
                                           "\xf0\x9f\x98\x80",
                                           "\n\n",
                                           " \n",
                                           "\n "};
  std::uint64_t state = 1;
  const auto next = [&](std::size_t bound) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::size_t>(state >> 33) % bound;
  };
  int cuts = 0;
  for (int round = 0; round < 60000; ++round) {
    std::string text;
    for (std::size_t i = 0; i < 14; ++i) text += pieces[next(pieces.size())];
    for (std::size_t at = 0; at <= text.size(); ++at) {
      if (!detail::isSafeCut(text, at)) continue;
      ++cuts;
      const std::string_view whole = text;
      for (const Pattern pattern :
           {Pattern::gpt2, Pattern::cl100k, Pattern::o200k, Pattern::llama3, Pattern::qwen2, Pattern::gpt2Digits}) {
        std::vector<std::string_view> parts = splitWords(pattern, whole.substr(0, at));
        const std::vector<std::string_view> rest = splitWords(pattern, whole.substr(at));
        parts.insert(parts.end(), rest.begin(), rest.end());
        ASSERT_EQ(parts, splitWords(pattern, whole)) << tokenizer::name(pattern) << " cut at " << at << " of " << text;
      }
    }
  }
  EXPECT_GT(cuts, 1000);
}

template <class Produce, class Work, class Consume>
void runPipeline(Produce produce, Work work, Consume consume, int threads) {
  detail::OrderedPipeline<Produce, Work, Consume>(produce, work, consume, threads).run();
}

TEST(OrderedPipeline, keepsTheOrderAndThrowsTheFirstFailureOnly) {
  for (const int threads : {1, 4}) {
    int given = 0;
    std::vector<int> taken;
    const auto produce = [&] { return given < 500 ? std::optional<int>(given++) : std::nullopt; };
    const auto consume = [&](int value) { taken.push_back(value); };
    runPipeline(
        produce, [](std::size_t, int value) { return 2 * value; }, consume, threads);
    ASSERT_EQ(taken.size(), 500u);
    for (int i = 0; i < 500; ++i) ASSERT_EQ(taken[static_cast<std::size_t>(i)], 2 * i);

    given = 0;
    taken.clear();
    const auto fail = [](std::size_t, int value) {
      if (value >= 100) throw base::Error(ErrorKind::badData, "item " + std::to_string(value));
      return value;
    };
    expectError(ErrorKind::badData, {"item 100"}, [&] { runPipeline(produce, fail, consume, threads); });
    EXPECT_EQ(taken.size(), 100u);
    EXPECT_LT(given, 120);  // it does not go on producing
  }
}

}  // namespace
}  // namespace tandem::data
