#include "common/data/text_source.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "common/data/block_reader.h"
#include "tests/common/data/compress.h"
#include "tests/common/data/expect_error.h"
#include "tests/common/data/temporary_folder.h"

namespace tandem::data {
namespace {

using base::ErrorKind;
using Texts = std::vector<std::string>;

struct ReadResult {
  Texts texts;
  InputReport report;
};

// Reads what one rank of several reads, and joins the parts of documents that were cut.
void readShare(std::span<const TextFile> files, const TextOptions& options, int rank, int ranks, ReadResult& result) {
  BlockReader reader(files, shareOut(files, options, rank, ranks), options);
  while (const std::optional<TextBlock> block = reader.next()) {
    result.report.add(
        forEachDocument(*block, files[static_cast<std::size_t>(block->file)], options, [&](const Document& document) {
          if (document.starts) result.texts.emplace_back();
          result.texts.back() += document.text;
        }));
  }
  result.report.add(reader.report());
}

ReadResult readAll(const Texts& arguments, const TextOptions& options = {}, int ranks = 1) {
  const std::vector<TextFile> files = findTextFiles(arguments);
  ReadResult result;
  for (int rank = 0; rank < ranks; ++rank) readShare(files, options, rank, ranks, result);
  return result;
}

std::string repeated(const std::string& text, int times) {
  std::string result;
  for (int i = 0; i < times; ++i) result += text + std::to_string(i % 10);
  return result;
}

class TextSource : public testing::Test {
 protected:
  TemporaryFolder folder_;
};

TEST_F(TextSource, filesFoldersAndPatternsAreFoundInTheOrderOfTheirNames) {
  for (const char* name :
       {"c.txt", "a/2.jsonl", "a/10.txt.gz", "a/B.TXT", "a/.hidden.txt", ".git/x.txt", "a/note.md"}) {
    folder_.write(name, "x");
  }
  const auto names = [&](const Texts& arguments) {
    Texts result;
    for (const TextFile& file : findTextFiles(arguments)) {
      result.push_back(std::filesystem::relative(file.path, folder_.path()).string());
    }
    return result;
  };
  const std::string root = folder_.path().string();
  EXPECT_EQ(names({root}), (Texts{"a/10.txt.gz", "a/2.jsonl", "a/B.TXT", "c.txt"}));
  EXPECT_EQ(names({root + "/c.txt", root + "/a/*.jsonl"}), (Texts{"c.txt", "a/2.jsonl"}));
  EXPECT_EQ(names({root + "/c.txt", root + "/c.txt"}).size(), 2u);
}

TEST_F(TextSource, oddNamesAreNamesLikeAnyOther) {
  for (const char* name : {"two words.txt", "quote'd \"name\".txt", "na\xc3\xafve.txt", "percent%20.txt", "a[1].txt"}) {
    EXPECT_EQ(readAll({folder_.write(name, "text")}).texts, Texts{"text"}) << name;
  }
}

TEST_F(TextSource, whatCannotBeReadIsSaid) {
  const std::string root = folder_.path().string();
  folder_.write("empty/note.md", "");
  expectError(ErrorKind::usage, {"missing.txt", "does not exist"},
              [&] { findTextFiles(Texts{root + "/missing.txt"}); });
  expectError(ErrorKind::usage, {"no file matches", "*.txt"}, [&] { findTextFiles(Texts{root + "/*.txt"}); });
  expectError(ErrorKind::badData, {"holds no text", "empty"}, [&] { findTextFiles(Texts{root + "/empty"}); });
  expectError(ErrorKind::usage, {"note.md", ".jsonl"}, [&] { findTextFiles(Texts{root + "/empty/note.md"}); });
}

TEST_F(TextSource, aTextFileIsOneDocumentByteForByte) {
  for (const std::string& text : Texts{"a", "\n", "\n\n \n\t\n\n", "no end", "\xef\xbb\xbfmark",
                                       std::string("\0nul\0", 5), "\xff\xfe\xc3 bytes"}) {
    const ReadResult result = readAll({folder_.write("x.txt", text)});
    EXPECT_EQ(result.texts, Texts{text});
  }
  EXPECT_EQ(readAll({folder_.write("x.txt", "")}).texts, Texts{});
}

TEST_F(TextSource, aSeparatorPartsDocumentsAndBelongsToNone) {
  const std::string path = folder_.write("x.txt", "one\n\ntwo\nlines\n\n\n\nthree\n\n");
  const ReadResult result = readAll({path}, {.documentSeparator = "\n\n"});
  EXPECT_EQ(result.texts, (Texts{"one", "two\nlines", "three"}));
  EXPECT_EQ(result.report.emptyDocuments, 1);
}

TEST_F(TextSource, recordsOfJsonLinesGiveTheStringUnderTheKey) {
  const std::string path =
      folder_.write("x.jsonl",
                    "\xef\xbb\xbf{\"text\": \"first\"}\r\n"
                    "\n  \t\n"
                    "{ \"id\" : -1.5e+3, \"text\" : \"tab\\t\\u00e9\\ud83d\\ude00\", \"x\": [{\"text\": 1}, null] }\n"
                    "{\"text\": \"\"}\n"
                    "{\"text\": \"old\", \"\\u0074ext\": \"last of two wins\"}");
  const ReadResult result = readAll({path});
  EXPECT_EQ(result.texts, (Texts{"first", "tab\t\xc3\xa9\xf0\x9f\x98\x80", "last of two wins"}));
  EXPECT_EQ(result.report.emptyDocuments, 1);
  EXPECT_EQ(readAll({folder_.write("y.jsonl", "{\"body\": \"b\", \"text\": \"t\"}")}, {.textKey = "body"}).texts,
            Texts{"b"});
}

TEST_F(TextSource, badRecordsAreErrorsWithFileAndLineOrCounted) {
  const Texts bad = {R"({"text": "not closed})",
                     R"({"text": "no brace")",
                     R"("text": "no brace"})",
                     R"({'text': 'single'})",
                     R"({text: "bare name"})",
                     R"({"text": "comma",})",
                     R"({"text" "no colon"})",
                     R"({"text": "two"} {"text": "x"})",
                     R"({"text": "rest"} rest)",
                     R"({"text": "bad \x escape"})",
                     R"({"text": "bad \u12G4"})",
                     R"({"text": "cut \u12"})",
                     R"({"text": "cut \)",
                     R"({"text": undefined})",
                     R"({"text": "a" // c)",
                     "{",
                     "}",
                     "text",
                     "{\"text\": \"a\tb\"}",
                     R"({"text": "\ud83d alone"})",
                     R"({"text": "\ude00 alone"})",
                     R"({"text": "\ude00\ud83d"})",
                     R"({"text": "\ud83dA"})",
                     R"({"text": null})",
                     R"({"text": 42})",
                     R"({"text": ["a"]})",
                     R"({"text": {"a": "b"}})",
                     R"({"text": "s", "text": 5})",
                     R"({"id": 1})",
                     "{}",
                     R"({"Text": "case"})",
                     R"({"data": {"text": "deep"}})",
                     "[]",
                     R"(["text", "x"])",
                     "null",
                     "3.5",
                     R"({"text": "x", "n": 01})",
                     R"({"text": "x", "n": 1.})",
                     R"({"text": "x", "n": -})",
                     R"({"text": "x", "n": 1e})",
                     R"({"text": "x", "n": NaN})",
                     R"({"text": "x", "l": [1,]})",
                     R"({"text": "x", "l": [1 2]})",
                     R"({"text": "x", "l": [1})",
                     R"({"text": "x", "l": {"a"}})",
                     R"({"text": "x",, "l": 1})",
                     R"({"text": "x", "t": truefalse})",
                     R"({"text": "x", "l": )" + std::string(100000, '[') + std::string(100000, ']') + "}",
                     std::string("{\"text\": \"x\"}\0", 14)};
  for (const std::string& record : bad) {
    SCOPED_TRACE(record.substr(0, 100));
    const std::string path = folder_.write("x.jsonl", "{\"text\": \"good\"}\n\n" + record + "\n{\"text\": \"too\"}\n");
    expectError(ErrorKind::badData, {path, "line 3", "--skip-bad-records"}, [&] { readAll({path}); });
    const ReadResult result = readAll({path}, {.skipBadRecords = true});
    EXPECT_EQ(result.texts, (Texts{"good", "too"}));
    EXPECT_EQ(result.report.badRecords, 1);
    EXPECT_NE(result.report.firstBadRecord.find("line 3"), std::string::npos) << result.report.firstBadRecord;
  }
}

TEST_F(TextSource, unusualButGoodRecordsAreRead) {
  const Texts good = {R"({"text": "x", "n": [0, -0, 0.5, 1e9, 1E-2, 123456789012345678901234567890]})",
                      R"({"a": {}, "b": [], "c": [[], {}], "text": "x"})",
                      R"({"text": "x", "d": )" + std::string(200, '[') + std::string(200, ']') + "}",
                      R"({"b": true, "f": false, "n": null, "text": "x"})",
                      "{\"text\": \"x\"}   \t\r",
                      "  {\"text\":\"x\"}",
                      "{\"" + std::string(100000, 'k') + "\": 1, \"text\": \"x\"}"};
  for (const std::string& record : good) {
    EXPECT_EQ(readAll({folder_.write("x.jsonl", record + "\n")}).texts, Texts{"x"}) << record.substr(0, 100);
  }
}

TEST_F(TextSource, bytesThatAreNoUtf8AreKeptAndCounted) {
  const std::string path = folder_.write("x.jsonl", "{\"text\": \"a\xff\xe2\x82 b\xc3\"}\n");
  const ReadResult result = readAll({path});
  EXPECT_EQ(result.texts, Texts{"a\xff\xe2\x82 b\xc3"});
  EXPECT_EQ(result.report.invalidUtf8, 3);
  EXPECT_EQ(readAll({folder_.write("x.txt", "\xed\xa0\x80\xf0\x9f\x98\x80\xc0\xaf")}).report.invalidUtf8, 5);
  EXPECT_EQ(
      readAll({folder_.write("x.txt", "caf\xc3\xa9 \xf0\x9f\x98\x80 \xed\x9f\xbf\xf4\x8f\xbf\xbf")}).report.invalidUtf8,
      0);
}

TEST_F(TextSource, compressedFilesReadLikePlainOnes) {
  const std::string text = repeated("some text ", 300000);
  const std::string lines = "{\"text\": \"" + text + "\"}\n{\"text\": \"second\"}";
  for (const auto& compress : {gzip, zstd}) {
    const std::string ending = compress == gzip ? ".gz" : ".zst";
    EXPECT_EQ(readAll({folder_.write("x.txt" + ending, compress(text))}).texts, Texts{text});
    EXPECT_EQ(readAll({folder_.write("x.jsonl" + ending, compress(lines))}).texts, (Texts{text, "second"}));
    // Files appended to each other, as pigz and parallel compressors write them.
    const std::string joined = compress(lines + "\n") + compress("") + compress("{\"text\": \"third\"}");
    EXPECT_EQ(readAll({folder_.write("x.jsonl" + ending, joined)}).texts, (Texts{text, "second", "third"}));
  }
}

TEST_F(TextSource, compressedFilesThatBreakOffAreErrorsOrLoseTheirEnd) {
  std::string lines;
  for (int i = 0; i < 60000; ++i) lines += "{\"text\": \"record " + std::to_string(i * 7919L) + "\"}\n";
  for (const auto& compress : {gzip, zstd}) {
    const std::string whole = compress(lines);
    const std::string path = folder_.write(compress == gzip ? "x.jsonl.gz" : "x.jsonl.zst", "");
    for (const std::string& content : {whole.substr(0, whole.size() / 2), whole.substr(0, whole.size() - 3),
                                       whole + "trailing", std::string("no compressed data")}) {
      folder_.write(std::filesystem::path(path).filename(), content);
      expectError(ErrorKind::badData, {path, "line ", compress == gzip ? "gzip data" : "zstd data"},
                  [&] { readAll({path}); });
      const ReadResult result = readAll({path}, {.skipBadRecords = true});
      EXPECT_EQ(result.report.badRecords, 1);
      for (std::size_t i = 0; i < result.texts.size(); ++i) {
        ASSERT_EQ(result.texts[i], "record " + std::to_string(static_cast<long>(i) * 7919L));
      }
    }
    // Damage in the middle may first show as nonsense in the text, or as a wrong sum at the end.
    std::string damaged = whole;
    for (std::size_t i = whole.size() / 2; i < whole.size() / 2 + 50; ++i) damaged[i] = 'x';
    folder_.write(std::filesystem::path(path).filename(), damaged);
    expectError(ErrorKind::badData, {path, "line "}, [&] { readAll({path}); });
  }
}

// The heart of the promise that ranks don't matter: the same documents in the same order at any number of them.
TEST_F(TextSource, anyNumberOfRanksReadsTheSameDocumentsInTheSameOrder) {
  std::string lines, plain, blank;
  for (int i = 0; i < 400; ++i) {
    const std::string words = repeated("word ", i % 37 + 1);
    lines += "{\"text\": \"" + words + "\"}\n" + std::string(i % 5 == 0, '\n');
    plain += words + std::string(static_cast<std::size_t>(i % 6), '\n');
  }
  for (int i = 0; i < 1000; ++i) blank += '\n';
  folder_.write("1.jsonl", lines);
  folder_.write("2.txt", plain);
  folder_.write("3.txt.gz", gzip(plain));
  folder_.write("4.jsonl.zst", zstd(lines));
  folder_.write("5.txt", blank + "x" + blank);
  folder_.write("6.txt", "");
  folder_.write("7.jsonl", lines.substr(0, lines.size() - 1));
  const Texts arguments = {folder_.path().string()};
  for (const std::optional<std::string>& separator :
       {std::optional<std::string>(), std::optional<std::string>("\n"), std::optional<std::string>("\n\n"),
        std::optional<std::string>("\n\n\n"), std::optional<std::string>("word 1")}) {
    const TextOptions options{.documentSeparator = separator};
    const ReadResult one = readAll(arguments, options);
    for (const int ranks : {2, 3, 7, 64}) {
      const ReadResult many = readAll(arguments, options, ranks);
      EXPECT_EQ(many.texts, one.texts) << ranks << " ranks, separator " << separator.value_or("none");
      EXPECT_EQ(many.report.emptyDocuments, one.report.emptyDocuments);
    }
  }
}

TEST_F(TextSource, everySeparatorPositionGivesTheSameDocumentsToAnyTwoRanks) {
  // All strings of a and b of length 7 as files, parted at "aba", "aa" and "ab" by up to 7 ranks.
  for (int bits = 0; bits < 128; ++bits) {
    std::string text;
    for (int i = 0; i < 7; ++i) text += (bits >> i & 1) != 0 ? 'a' : 'b';
    const std::string path = folder_.write("x.txt", text);
    for (const char* separator : {"aba", "aa", "ab"}) {
      const ReadResult one = readAll({path}, {.documentSeparator = separator});
      for (int ranks = 2; ranks <= 7; ++ranks) {
        ASSERT_EQ(readAll({path}, {.documentSeparator = separator}, ranks).texts, one.texts)
            << text << " at " << separator;
      }
    }
  }
}

TEST_F(TextSource, ranksGetAboutTheSameNumberOfBytes) {
  std::vector<TextFile> files;
  for (const std::int64_t bytes : {1000, 10, 5000, 0, 3000}) files.push_back({.bytes = bytes});
  for (int rank = 0; rank < 3; ++rank) {
    std::int64_t sum = 0;
    for (const FileRange& range : shareOut(files, {}, rank, 3)) sum += range.end - range.begin;
    EXPECT_NEAR(static_cast<double>(sum), 9010 / 3.0, 1.0);
  }
}

TEST_F(TextSource, longDocumentsAreHandedOutInPartsUnlessThatIsForbidden) {
  const std::string text = repeated("some words in a row ", 200000);
  const std::string path = folder_.write("x.txt", text);
  const std::vector<TextFile> files = findTextFiles(Texts{path});
  for (const bool mayCut : {true, false}) {
    const TextOptions options{.mayCutDocuments = mayCut};
    BlockReader reader(files, shareOut(files, options, 0, 1), options);
    int blocks = 0;
    while (const std::optional<TextBlock> block = reader.next()) {
      EXPECT_EQ(block->startsDocument, blocks == 0);
      EXPECT_LE(block->bytes.size(), mayCut ? (1u << 20) + 1 : text.size());
      ++blocks;
    }
    EXPECT_EQ(blocks, mayCut ? 5 : 1);
    EXPECT_EQ(readAll({path}, options, 3).texts, Texts{text});
  }
}

TEST_F(TextSource, aRecordLongerThanABlockIsOneRecord) {
  const std::string text = repeated("x", 3000000);
  const std::string path =
      folder_.write("x.jsonl", "{\"text\": \"a\"}\n{\"text\": \"" + text + "\"}\n{\"text\": \"b\"}\n");
  for (const int ranks : {1, 3}) EXPECT_EQ(readAll({path}, {}, ranks).texts, (Texts{"a", text, "b"}));
}

}  // namespace
}  // namespace tandem::data
