// programs: tokenize
// The real `tokenize`, alone and under mpirun: the same result at any rank count, text back as it was, and one clear
// message for everything that can be wrong with the input.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/files.h"
#include "common/checkpoint/checkpoint.h"
#include "common/data/dataset.h"
#include "tests/common/data/compress.h"
#include "tests/run_program.h"

namespace tandem {
namespace {

using test::Ended;

std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? "'\\''" : std::string(1, c);
  return result + "'";
}

const std::string tokenizeProgram = test::neighbour("../bin/tokenize");

std::vector<std::int32_t> tokensOf(const data::Dataset& dataset) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(dataset.tokenCount()));
  dataset.readTokens(0, tokens);
  return tokens;
}

void expectSameDataset(const std::filesystem::path& a, const std::filesystem::path& b) {
  const data::Dataset left(a), right(b);
  EXPECT_EQ(tokensOf(left), tokensOf(right));
  EXPECT_TRUE(std::ranges::equal(left.documentOffsets(), right.documentOffsets()));
  EXPECT_EQ(left.description().tokenizer, right.description().tokenizer);
  EXPECT_EQ(left.description().tokenizerHash, right.description().tokenizerHash);
  EXPECT_EQ(left.description().textBytes, right.description().textBytes);
  EXPECT_EQ(left.description().sources, right.description().sources);
}

// Words from a small vocabulary in an order that looks random, with some of other scripts and odd bytes.
std::string someText(std::uint64_t seed, int words) {
  static const std::vector<std::string> vocabulary = {"the",
                                                      "cat",
                                                      "sat",
                                                      "on",
                                                      "a",
                                                      "mat,",
                                                      "while",
                                                      "rain",
                                                      "fell.\n",
                                                      "It's",
                                                      "1234",
                                                      "don't",
                                                      "caf\xc3\xa9",
                                                      "\xe6\xbc\xa2\xe5\xad\x97",
                                                      "\xf0\x9f\x98\x80",
                                                      "STRASSE",
                                                      "\t\tindented",
                                                      "  spaces  ",
                                                      "\n\n",
                                                      "<|endoftext|>"};
  std::string text;
  for (int i = 0; i < words; ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    text += vocabulary[(seed >> 33) % vocabulary.size()] + " ";
  }
  return text;
}

class Tokenize : public testing::Test {
 protected:
  // A rank alone then starts without a daemon of MPI beside it: faster, and a limit on file sizes hits only us.
  Tokenize() { setenv("OMPI_MCA_ess_singleton_isolated", "1", 1); }

  std::string write(const std::string& name, const std::string& content) {
    const std::filesystem::path path = folder_.path() / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << content;
    return path.string();
  }
  std::string at(const std::string& name) const { return (folder_.path() / name).string(); }
  std::string commandLine(const std::vector<std::string>& arguments) const {
    std::string line = quoted(tokenizeProgram);
    for (const std::string& argument : arguments) line += ' ' + quoted(argument);
    return line;
  }
  Ended run(const std::vector<std::string>& arguments, int ranks = 1) const {
    return ranks == 1 ? test::runCommand(commandLine(arguments)) : test::runRanks(ranks, commandLine(arguments));
  }
  void mustRun(const std::vector<std::string>& arguments, int ranks = 1) const {
    const Ended ended = run(arguments, ranks);
    ASSERT_EQ(ended.exitCode, 0) << commandLine(arguments) << '\n' << ended.errors;
  }
  // A folder of all formats, its documents parted at blank lines in the .txt files.
  std::string mixedCorpus() {
    std::string lines;
    for (std::uint64_t i = 0; i < 300; ++i) {
      lines += nlohmann::json({{"id", i}, {"text", someText(i, static_cast<int>(5 + i % 90))}}).dump() + "\n";
    }
    write("corpus/a.jsonl", lines);
    write("corpus/b.txt", someText(1000, 20000));
    write("corpus/c/d.jsonl.zst", data::zstd(lines.substr(0, lines.size() - 1)));
    write("corpus/c/e.txt.gz", data::gzip(someText(1001, 3000)));
    write("corpus/f.txt", "");
    return at("corpus");
  }
  // A tokenizer of 320 tokens.
  std::string trained() {
    if (!std::filesystem::exists(at("tokenizer.json"))) {
      mustRun({"train", "--input", write("train.txt", someText(1, 20000)), "--vocab-size", "320", "--output",
               at("tokenizer.json")});
    }
    return at("tokenizer.json");
  }

  test::TemporaryFolder folder_;
};

TEST_F(Tokenize, trainsTheSameTokenizerAtAnyNumberOfRanksAndThreads) {
  const std::string corpus = mixedCorpus();
  for (const int ranks : {1, 2, 3}) {
    for (const char* pattern : {"o200k", "gpt2"}) {
      const std::string name = std::string(pattern) + std::to_string(ranks) + ".json";
      mustRun({"train", "--input", corpus, "--vocab-size", "500", "--pattern", pattern, "--special", "<|endoftext|>",
               "<|user|>", "--output", at(name), "--threads", std::to_string(ranks)},
              ranks);
      EXPECT_EQ(base::readFile(at(name)), base::readFile(at(std::string(pattern) + "1.json")));
    }
  }
  EXPECT_NE(base::readFile(at("o200k1.json")), base::readFile(at("gpt21.json")));
}

TEST_F(Tokenize, encodesTheSameDatasetsAtAnyNumberOfRanksAndThreads) {
  const std::string corpus = mixedCorpus(), tokenizer = trained();
  for (const int ranks : {1, 2, 3}) {
    const std::string n = std::to_string(ranks);
    mustRun(
        {"encode", "--input", corpus, "--tokenizer", tokenizer, "--output", at("whole" + n + ".h5"), "--threads", n},
        ranks);
    mustRun({"encode", "--input", corpus, "--tokenizer", tokenizer, "--output", at("train" + n + ".h5"),
             "--val-fraction", "0.2", "--val-output", at("val" + n + ".h5"), "--document-separator", "\\n\\n"},
            ranks);
    for (const std::string name : {"whole", "train", "val"}) {
      expectSameDataset(at(name + "1.h5"), at(name + n + ".h5"));
      EXPECT_TRUE(base::readFile(at(name + "1.h5")) == base::readFile(at(name + n + ".h5")))
          << name << ", " << n << " ranks";
    }
  }
  EXPECT_EQ(data::Dataset(at("whole1.h5")).documentCount(), 602);
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    EXPECT_EQ(entry.path().string().find(".partial"), std::string::npos) << entry.path();
  }
}

TEST_F(Tokenize, decodingGivesBackEveryByte) {
  std::string bytes;
  for (int i = 0; i < 512; ++i) bytes += static_cast<char>(i < 256 ? i : 511 - i);
  const std::vector<std::string> texts = {
      someText(7, 5000),   bytes, "\n", "a", "\xef\xbb\xbfmark\r\n\r\n", std::string(100000, ' '), "<|endoftext|>",
      std::string(3, '\0')};
  for (std::size_t i = 0; i < texts.size(); ++i) write("texts/" + std::to_string(i) + ".txt", texts[i]);
  mustRun({"encode", "--input", at("texts"), "--tokenizer", trained(), "--output", at("x.h5")});
  std::string marked;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(run({"decode", "--input", at("x.h5"), "--documents", std::to_string(i)}).output, texts[i]);
    marked += "<|endoftext|>" + texts[i] + "<|endoftext|>";
  }
  EXPECT_EQ(run({"decode", "--input", at("x.h5"), "--special"}).output, marked);
}

TEST_F(Tokenize, decodesIdsAndSingleDocuments) {
  EXPECT_EQ(run({"decode", "--tokenizer", trained(), "--ids", "72", "105", "33"}).output, "Hi!\n");
  const std::string lines = "{\"text\": \"zero\"}\n{\"text\": \"one\"}\n{\"text\": \"two\"}\n";
  mustRun({"encode", "--input", write("x.jsonl", lines), "--tokenizer", trained(), "--output", at("x.h5")});
  EXPECT_EQ(run({"decode", "--input", at("x.h5"), "--documents", "1"}).output, "one");
  EXPECT_EQ(run({"decode", "--input", at("x.h5"), "--documents", "1:3"}).output, "onetwo");
  EXPECT_EQ(run({"decode", "--input", at("x.h5"), "--jsonl"}, 2).output,
            "{\"text\":\"zero\"}\n{\"text\":\"one\"}\n{\"text\":\"two\"}\n");
}

TEST_F(Tokenize, decodesToOneJsonDocument) {
  const std::string lines = "{\"text\": \"zero\"}\n{\"text\": \"one \\\"\"}\n{\"text\": \"caf\xe9\"}\n";
  mustRun({"encode", "--input", write("x.jsonl", lines), "--tokenizer", trained(), "--output", at("x.h5")});
  const Ended ended = run({"decode", "--input", at("x.h5"), "--documents", "1:3", "--json"}, 2);
  EXPECT_EQ(ended.output,
            "{\"documents\":[{\"document\":1,\"text\":\"one \\\"\"},{\"document\":2,\"text\":\"caf\xef\xbf\xbd\"}]}\n");
  EXPECT_EQ(run({"decode", "--tokenizer", trained(), "--ids", "72", "105", "--json"}).output,
            "{\"documents\":[{\"text\":\"Hi\"}]}\n");
}

TEST_F(Tokenize, takesTheTokenizerOutOfACheckpoint) {
  const auto world = comm::makeSingleProcess();
  checkpoint::Writer writer(*world, at("run"), 0);
  const float value = 1;
  const checkpoint::LocalTensor tensor{"model/a", base::DType::f32, {1}, {{0, 1, &value}}};
  for (const std::int64_t step : {1, 2}) {
    checkpoint::Metadata metadata;
    metadata.step = step;
    metadata.tokenizer = step == 1 ? "no tokenizer" : base::readFile(trained());
    writer.save(metadata, std::span(&tensor, 1));
    writer.finish();
  }
  const std::string text = write("x.txt", someText(3, 500)), steps = at("run/checkpoints/");
  mustRun({"encode", "--input", text, "--tokenizer", trained(), "--output", at("json.h5")});
  for (const std::string& tokenizer : {at("run"), steps + "step-00000002", steps + "step-00000002/checkpoint.h5"}) {
    mustRun({"encode", "--input", text, "--tokenizer", tokenizer, "--output", at("out.h5")}, 2);
    expectSameDataset(at("json.h5"), at("out.h5"));
    EXPECT_EQ(run({"decode", "--tokenizer", tokenizer, "--ids", "72", "105"}).output, "Hi\n");
    EXPECT_EQ(run({"inspect", "--input", tokenizer, "--json"}).output,
              run({"inspect", "--input", trained(), "--json"}).output);
  }
  EXPECT_EQ(run({"inspect", "--input", steps + "step-00000001"}).exitCode, 3);
}

TEST_F(Tokenize, takesTheTokenizerOutOfADataset) {
  const std::string text = write("x.txt", someText(3, 500));
  mustRun({"encode", "--input", text, "--tokenizer", trained(), "--output", at("first.h5")});
  mustRun({"encode", "--input", text, "--tokenizer", at("first.h5"), "--output", at("second.h5")});
  expectSameDataset(at("first.h5"), at("second.h5"));
}

TEST_F(Tokenize, readsTiktokenFilesWithAPattern) {
  const std::string letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string ranks;
  for (unsigned byte = 0; byte < 256; ++byte) {
    ranks += std::string{letters[byte >> 2], letters[(byte & 3) << 4]} + "== " + std::to_string(byte) + "\n";
  }
  ranks += "dGhl 257\ndGg= 256\n";  // "the", "th"
  const std::string tokenizer = write("small.tiktoken", ranks), text = write("x.txt", "the thing");
  const Ended without = run({"encode", "--input", text, "--tokenizer", tokenizer, "--output", at("x.h5")});
  EXPECT_EQ(without.exitCode, 2);
  EXPECT_NE(without.errors.find("--pattern"), std::string::npos) << without.errors;
  mustRun({"encode", "--input", text, "--tokenizer", tokenizer, "--pattern", "cl100k", "--output", at("x.h5"),
           "--no-begin", "--no-end"});
  EXPECT_EQ(tokensOf(data::Dataset(at("x.h5"))), (std::vector<std::int32_t>{257, ' ', 256, 'i', 'n', 'g'}));
}

TEST_F(Tokenize, saysWhatItDidAndWhatFilesHoldAsJson) {
  const std::string lines = "{\"text\": \"the cat\"}\nbroken\n{\"text\": \"\"}\n{\"text\": \"caf\xe9\"}\n";
  for (const int ranks : {1, 2}) {
    const Ended ended = run({"encode", "--input", write("x.jsonl", lines), "--tokenizer", trained(), "--output",
                             at("x.h5"), "--skip-bad-records", "--json"},
                            ranks);
    ASSERT_EQ(ended.exitCode, 0) << ended.errors;
    const nlohmann::json summary = nlohmann::json::parse(ended.output);
    EXPECT_EQ(summary.at("documents"), 2);
    EXPECT_EQ(summary.at("text_bytes"), 11);
    EXPECT_EQ(summary.at("bad_records"), 1);
    EXPECT_EQ(summary.at("empty_documents"), 1);
    EXPECT_EQ(summary.at("invalid_utf8"), 1);
    EXPECT_NE(ended.errors.find("line 2"), std::string::npos) << ended.errors;
  }
  const nlohmann::json dataset = nlohmann::json::parse(run({"inspect", "--input", at("x.h5"), "--json"}).output);
  EXPECT_EQ(dataset.at("documents"), 2);
  EXPECT_EQ(dataset.at("tokenizer").at("vocabulary_size"), 320);
  const nlohmann::json tokenizer = nlohmann::json::parse(run({"inspect", "--input", trained(), "--json"}, 2).output);
  EXPECT_EQ(tokenizer.at("tokenizer").at("pattern"), "o200k");
  EXPECT_EQ(run({"inspect", "--input", at("x.h5")}).exitCode, 0);
}

struct Refusal {
  std::vector<std::string> arguments;
  int exitCode;
  std::string message;  // a part of it
};

TEST_F(Tokenize, badInputGetsOneMessageTheSameExitCodeAtAnyRankCountAndNoOutput) {
  const std::string text = write("good.txt", "some text"), json = trained(), out = at("out.h5");
  const std::string badLine = write("bad.jsonl", "{\"text\": \"a\"}\n\n{\"text\": 5}\n{\"text\": \"b\"}\n");
  const std::string cut = write("cut.jsonl.gz", data::gzip(someText(5, 3000)).substr(0, 900));
  std::filesystem::create_directories(at("nothing/below"));
  mustRun({"encode", "--input", text, "--tokenizer", json, "--output", at("good.h5")});
  const std::string hdf5 = base::readFile(at("good.h5"));
  write("cut.h5", hdf5.substr(0, hdf5.size() / 2));
  write("foreign.h5", "not HDF5 at all");
  write("broken.json", "{\"model\": 5}");
  const auto encode = [&](const std::string& input, const std::string& tokenizer, std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {"encode", "--input", input, "--tokenizer", tokenizer, "--output", out};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  };
  const std::vector<Refusal> refusals = {
      {{"encoed"}, 2, "unknown command 'encoed'"},
      {encode(text, json, {"--val-fractoin", "0.1"}), 2, "unknown flag '--val-fractoin'"},
      {encode(at("missing.txt"), json), 2, "missing.txt' does not exist"},
      {encode(at("*.nothing"), json), 2, "no file matches"},
      {encode(at("good.h5"), json), 2, "is not known by its name"},
      {encode(at("nothing"), json), 3, "holds no text"},
      {encode(write("empty.txt", ""), json), 3, "the input holds no text"},
      {encode(badLine, json), 3, "bad.jsonl', line 3"},
      {encode(badLine, json, {"--text-key", "body"}), 3, "bad.jsonl', line 1"},
      {encode(cut, json), 3, "cut.jsonl.gz', line"},
      {encode(text, at("missing.json")), 2, "missing.json' does not exist"},
      {encode(text, at("nothing")), 2, "holds no tokenizer: neither tokenizer.json nor a checkpoint"},
      {encode(text, at("broken.json")), 3, "broken.json"},
      {encode(text, at("foreign.h5")), 3, "foreign.h5"},
      {encode(text, at("cut.h5")), 3, "cut.h5"},
      {encode(text, json, {"--pattern", "gpt2"}), 2, "--pattern is for .tiktoken files"},
      {encode(text, json, {"--val-fraction", "0.1"}), 2, "belong together"},
      {encode(text, json, {"--val-fraction", "1.5", "--val-output", at("val.h5")}), 2, "not between 0 and 1"},
      {encode(text, json, {"--val-fraction", "0.1", "--val-output", out}), 2, "the same file"},
      {encode(text, json, {"--val-fraction", "0.1", "--val-output", at("no/val.h5")}), 2, "does not exist; make it"},
      {encode(text, json, {"--val-fraction", "0.5", "--val-output", at("val.h5")}), 3, "both need one"},
      {{"encode", "--input", text, "--tokenizer", json, "--output", at("no/folder.h5")}, 2, "does not exist; make it"},
      {{"encode", "--input", text, "--tokenizer", json, "--output", at("nothing")}, 2, "is a folder"},
      {{"train", "--input", text, "--vocab-size", "10", "--output", out}, 2, "no room"},
      {{"train", "--input", text, "--vocab-size", "300", "--pattern", "gpt5", "--output", out}, 2, "gpt5"},
      {{"train", "--input", at("empty.txt"), "--vocab-size", "300", "--output", out}, 3, "holds no text"},
      {{"train", "--input", badLine, "--vocab-size", "300", "--output", out}, 3, "bad.jsonl', line 3"},
      {{"train", "--input", text, "--vocab-size", "300", "--output", at("no/t.json")}, 2, "does not exist; make it"},
      {{"decode", "--input", at("missing.h5")}, 2, "missing.h5' does not exist"},
      {{"decode", "--input", at("cut.h5")}, 3, "cut.h5"},
      {{"decode", "--input", at("good.h5"), "--documents", "5"}, 2, "documents 0 to 0"},
      {{"decode", "--input", at("good.h5"), "--documents", "x"}, 2, "neither a number nor BEGIN:END"},
      {{"decode", "--tokenizer", json, "--ids", "320"}, 2, "id 320 is outside"},
      {{"decode", "--input", at("good.h5"), "--documents", "9223372036854775807"}, 2, "documents 0 to 0"},
      {{"decode"}, 2, "give either"},
      {{"decode", "--input", at("good.h5"), "--json", "--jsonl"}, 2, "give either --json"},
      {{"inspect", "--input", at("foreign.h5")}, 3, "foreign.h5"},
  };
  for (std::size_t i = 0; i < refusals.size(); ++i) {
    const Refusal& refusal = refusals[i];
    // Each alone, and every third with two ranks too: starting them takes its time.
    for (const int ranks : i % 3 == 0 ? std::vector<int>{1, 2} : std::vector<int>{1}) {
      const Ended ended = run(refusal.arguments, ranks);
      EXPECT_EQ(ended.exitCode, refusal.exitCode) << commandLine(refusal.arguments) << '\n' << ended.errors;
      EXPECT_EQ(test::countOf(ended.errors, refusal.message), 1) << refusal.message << "\n---\n" << ended.errors;
      EXPECT_EQ(ended.output, "");
    }
  }
  for (const char* name : {"out.h5", "out.h5.partial", "val.h5", "val.h5.partial", "no"}) {
    EXPECT_FALSE(std::filesystem::exists(at(name))) << name;
  }
}

TEST_F(Tokenize, aBadRecordInTheMiddleOfALongInputStopsAllRanks) {
  std::string lines;
  for (int i = 0; i < 3000; ++i) lines += "{\"text\": \"" + std::string(500, 'x') + "\"}\n";
  lines += "{\"text\": \n";
  for (int i = 0; i < 300; ++i) lines += "{\"text\": \"" + std::string(500, 'x') + "\"}\n";
  const std::string path = write("x.jsonl", lines);
  for (const int ranks : {1, 2, 3}) {
    const Ended ended = run({"encode", "--input", path, "--tokenizer", trained(), "--output", at("out.h5")}, ranks);
    EXPECT_EQ(ended.exitCode, 3) << ended.errors;
    EXPECT_EQ(test::countOf(ended.errors, "x.jsonl', line 3001"), 1) << ended.errors;
    EXPECT_FALSE(std::filesystem::exists(at("out.h5")));
    EXPECT_FALSE(std::filesystem::exists(at("out.h5.partial")));
  }
}

TEST_F(Tokenize, aFullDiskIsAnErrorThatLeavesNothing) {
  const std::string text = write("x.txt", someText(9, 400000));
  const std::vector<std::string> arguments = {"encode",  "--input",  text,        "--tokenizer",
                                              trained(), "--output", at("out.h5")};
  // A limit on the size of files stands for the full disk.
  const Ended ended = test::runCommand("trap '' XFSZ; ulimit -f 1000; " + commandLine(arguments));
  EXPECT_EQ(ended.exitCode, 1) << ended.errors;
  EXPECT_NE(ended.errors.find("out.h5"), std::string::npos) << ended.errors;
  EXPECT_NE(ended.errors.find("File too large"), std::string::npos) << ended.errors;
  EXPECT_FALSE(std::filesystem::exists(at("out.h5")));
  EXPECT_FALSE(std::filesystem::exists(at("out.h5.partial")));
}

TEST_F(Tokenize, aKilledRunLeavesNothingUnderTheFinalName) {
  const std::string text = write("x.txt", someText(9, 2000000));
  mustRun({"encode", "--input", text, "--tokenizer", trained(), "--output", at("good.h5"), "--threads", "1"});
  int killed = 0;
  for (const char* delay : {"0.1", "0.2", "0.3", "0.4", "0.6"}) {
    const Ended ended = test::runCommand(
        commandLine({"encode", "--input", text, "--tokenizer", trained(), "--output", at("out.h5"), "--threads", "1"}) +
        " & p=$!; sleep " + delay + "; kill -9 $p; wait $p");
    killed += ended.exitCode == 137;
    // Complete or not there.
    if (std::filesystem::exists(at("out.h5"))) expectSameDataset(at("good.h5"), at("out.h5"));
    std::filesystem::remove(at("out.h5"));
  }
  EXPECT_GT(killed, 0);
  // What a killed run left behind is no obstacle for the next one.
  mustRun({"encode", "--input", text, "--tokenizer", trained(), "--output", at("out.h5"), "--threads", "1"});
  expectSameDataset(at("good.h5"), at("out.h5"));
  EXPECT_FALSE(std::filesystem::exists(at("out.h5.partial")));
}

}  // namespace
}  // namespace tandem
