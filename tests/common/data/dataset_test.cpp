#include "common/data/dataset.h"

#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "tests/common/data/expect_error.h"
#include "tests/common/data/make_dataset.h"
#include "tests/common/data/temporary_folder.h"

namespace tandem::data {
namespace {

using base::DType;
using base::ErrorKind;
using base::Shape;

const std::string hash(32, 'a');

std::vector<std::int32_t> allTokens(const Dataset& dataset) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(dataset.tokenCount()));
  dataset.readTokens(0, tokens);
  return tokens;
}

TEST(Dataset, readsBackWhatWasWritten) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "train.h5";
  makeDataset(path, {{1, 2, 3}, {4}, {5, 299}}, 300);
  EXPECT_FALSE(std::filesystem::exists(path.string() + ".partial"));

  const Dataset dataset(path);
  EXPECT_EQ(dataset.documentCount(), 3);
  EXPECT_EQ(allTokens(dataset), (std::vector<std::int32_t>{1, 2, 3, 4, 5, 299}));
  const auto offsets = dataset.documentOffsets();
  EXPECT_EQ(std::vector(offsets.begin(), offsets.end()), (std::vector<std::int64_t>{0, 3, 4, 6}));
  EXPECT_EQ(dataset.description().vocabularySize, 300);
  EXPECT_EQ(dataset.description().tokenizerHash, hash);
  EXPECT_EQ(dataset.description().textBytes, 77);
  EXPECT_EQ(dataset.documentOf(2), 0);
  EXPECT_EQ(dataset.documentOf(3), 1);
  EXPECT_EQ(dataset.documentOf(4), 2);
  EXPECT_TRUE(isDataset(path));
}

TEST(Dataset, tokensAreStoredInTwoBytesUpToAVocabularyOf65536AndInFourAbove) {
  const TemporaryFolder folder;
  makeDataset(folder.path() / "two.h5", {{65535}}, 65536);
  makeDataset(folder.path() / "four.h5", {{65536}}, 65537);
  EXPECT_EQ(hdf5::File::open(folder.path() / "two.h5").dataset("/tokens").type(), DType::u16);
  EXPECT_EQ(hdf5::File::open(folder.path() / "four.h5").dataset("/tokens").type(), DType::u32);
  EXPECT_EQ(allTokens(Dataset(folder.path() / "two.h5")).at(0), 65535);
  EXPECT_EQ(allTokens(Dataset(folder.path() / "four.h5")).at(0), 65536);
}

TEST(Dataset, longOnesAreWrittenPieceByPieceAndReadBackWhole) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "long.h5";
  std::vector<std::uint32_t> piece(300001);
  std::int64_t next = 0;
  DatasetWriter writer(path, 50000);
  for (int document = 0; document < 8; ++document) {
    writer.beginDocument();
    for (auto& token : piece) token = static_cast<std::uint32_t>(next++ % 49999);
    writer.append(piece);
  }
  writer.finish({.tokenizer = "{}", .tokenizerHash = hash, .vocabularySize = 50000});
  const Dataset dataset(path);
  const std::vector<std::int32_t> tokens = allTokens(dataset);
  ASSERT_EQ(tokens.size(), 8u * 300001u);
  for (std::size_t i = 0; i < tokens.size(); ++i) ASSERT_EQ(tokens[i], static_cast<std::int32_t>(i % 49999)) << i;
}

TEST(Dataset, carriesALossMask) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "chat.h5";
  {
    DatasetWriter writer(path, 10, true);
    writer.beginDocument();
    writer.append(std::vector<std::uint32_t>{1, 2, 3}, std::vector<std::uint8_t>{0, 1, 1});
    writer.finish({.tokenizer = "{}", .tokenizerHash = hash, .vocabularySize = 10});
  }
  const Dataset dataset(path);
  ASSERT_TRUE(dataset.hasLossMask());
  std::vector<std::uint8_t> mask(2);
  dataset.readLossMask(0, mask);
  EXPECT_EQ(mask, (std::vector<std::uint8_t>{0, 1}));
}

TEST(Dataset, aWriterThatIsNotFinishedLeavesNothing) {
  const TemporaryFolder folder;
  {
    DatasetWriter writer(folder.path() / "train.h5", 10);
    writer.beginDocument();
    writer.append(std::vector<std::uint32_t>{1});
    EXPECT_TRUE(std::filesystem::exists(folder.path() / "train.h5.partial"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Dataset, anUnfinishedWriterLeavesTheFileThatWasThereUntouched) {
  const TemporaryFolder folder;
  makeDataset(folder.path() / "train.h5", {{1, 2}}, 10);
  { DatasetWriter writer(folder.path() / "train.h5", 10); }
  EXPECT_EQ(Dataset(folder.path() / "train.h5").tokenCount(), 2);
}

TEST(Dataset, outputsThatCannotBeWrittenAreRefusedBeforeAnyWork) {
  const TemporaryFolder folder;
  expectError(ErrorKind::usage, {"missing", "does not exist"},
              [&] { DatasetWriter(folder.path() / "missing" / "train.h5", 10); });
  expectError(ErrorKind::usage, {"is a folder"}, [&] { DatasetWriter(folder.path(), 10); });
}

// A file that differs from a good one in one thing, and the word that the message must have.
struct Damage {
  std::string what;
  std::string word;
  std::function<void(hdf5::File&)> spoil;  // called instead of writing what `leaveOut` names
  std::string leaveOut;
};

void writeSpoilt(const std::filesystem::path& path, const Damage& damage) {
  hdf5::File file = hdf5::File::create(path);
  const auto wanted = [&](const std::string& name) { return damage.leaveOut != name; };
  const std::vector<std::uint16_t> tokens = {1, 2, 3, 4};
  const std::vector<std::uint64_t> offsets = {0, 3, 4};
  if (wanted("/tokens")) file.create("/tokens", DType::u16, Shape{4}).write(0, 4, tokens.data());
  if (wanted("/document_offsets")) file.create("/document_offsets", DType::u64, Shape{3}).write(0, 3, offsets.data());
  if (wanted("/tokenizer")) file.writeText("/tokenizer", "{}");
  if (wanted("format")) file.setAttribute("/", "format", "tandem-dataset");
  if (wanted("version")) file.setAttribute("/", "version", 1);
  if (wanted("tokenizer_hash")) file.setAttribute("/", "tokenizer_hash", hash);
  if (wanted("vocabulary_size")) file.setAttribute("/", "vocabulary_size", 5);
  if (wanted("text_bytes")) file.setAttribute("/", "text_bytes", 12);
  if (wanted("sources")) file.setAttribute("/", "sources", "[]");
  if (damage.spoil) damage.spoil(file);
  file.close();
}

void writeOffsets(hdf5::File& file, std::vector<std::uint64_t> offsets) {
  const auto count = static_cast<std::int64_t>(offsets.size());
  file.create("/document_offsets", DType::u64, Shape{count}).write(0, count, offsets.data());
}

// Zeros, which are stored all the same.
void writeZeros(hdf5::File& file, const std::string& name, DType type, const Shape& shape) {
  const std::vector<std::byte> zeros(static_cast<std::size_t>(shape.count() * base::byteSize(type)));
  file.create(name, type, shape).write(0, shape.count(), zeros.data());
}

TEST(Dataset, damagedFilesAreRefusedWithTheReason) {
  const TemporaryFolder folder;
  const std::vector<Damage> damages = {
      {"another format", "no dataset", [](auto& f) { f.setAttribute("/", "format", "tandem-checkpoint"); }, "format"},
      {"no format", "no dataset", {}, "format"},
      {"a later version", "version 2", [](auto& f) { f.setAttribute("/", "version", 2); }, "version"},
      {"no version", "version", {}, "version"},
      {"no tokens", "/tokens", {}, "/tokens"},
      {"tokens of floats", "float32", [](auto& f) { writeZeros(f, "/tokens", DType::f32, Shape{4}); }, "/tokens"},
      {"tokens with two axes", "[2, 2]",
       [](auto& f) {
         writeZeros(f, "/tokens", DType::u16, Shape{2, 2});
       },
       "/tokens"},
      {"no token", "empty", [](auto& f) { f.create("/tokens", DType::u16, Shape{0}); }, "/tokens"},
      {"no offsets", "/document_offsets", {}, "/document_offsets"},
      {"one offset", "fewer than two", [](auto& f) { writeOffsets(f, {0}); }, "/document_offsets"},
      {"first offset not 0", "start at 0",
       [](auto& f) {
         writeOffsets(f, {1, 4});
       },
       "/document_offsets"},
      {"falling offsets", "after element 1",
       [](auto& f) {
         writeOffsets(f, {0, 3, 2, 4});
       },
       "/document_offsets"},
      {"an empty document", "after element 1",
       [](auto& f) {
         writeOffsets(f, {0, 2, 2, 4});
       },
       "/document_offsets"},
      {"offsets short of the end", "ends at 3",
       [](auto& f) {
         writeOffsets(f, {0, 3});
       },
       "/document_offsets"},
      {"offsets beyond the end", "ends at 9",
       [](auto& f) {
         writeOffsets(f, {0, 9});
       },
       "/document_offsets"},
      {"huge offset", "ends at",
       [](auto& f) {
         writeOffsets(f, {0, std::uint64_t{1} << 62});
       },
       "/document_offsets"},
      {"negative as signed", "rise",
       [](auto& f) {
         writeOffsets(f, {0, ~std::uint64_t{0}});
       },
       "/document_offsets"},
      {"more documents than tokens", "more documents",
       [](auto& f) {
         writeOffsets(f, {0, 1, 2, 3, 4, 5});
       },
       "/document_offsets"},
      {"no tokenizer", "/tokenizer", {}, "/tokenizer"},
      {"no hash", "tokenizer_hash", {}, "tokenizer_hash"},
      {"a malformed hash", "hash", [](auto& f) { f.setAttribute("/", "tokenizer_hash", "xyz"); }, "tokenizer_hash"},
      {"no vocabulary", "vocabulary_size", {}, "vocabulary_size"},
      {"vocabulary of 0", "vocabulary_size", [](auto& f) { f.setAttribute("/", "vocabulary_size", 0); },
       "vocabulary_size"},
      {"negative bytes", "text_bytes", [](auto& f) { f.setAttribute("/", "text_bytes", -1); }, "text_bytes"},
      {"no sources", "sources", {}, "sources"},
      {"mask too short", "/loss_mask", [](auto& f) { writeZeros(f, "/loss_mask", DType::u8, Shape{3}); }, ""},
      {"mask of another type", "/loss_mask", [](auto& f) { writeZeros(f, "/loss_mask", DType::u16, Shape{4}); }, ""},
  };
  for (const Damage& damage : damages) {
    SCOPED_TRACE(damage.what);
    const auto path = folder.path() / "bad.h5";
    writeSpoilt(path, damage);
    expectError(ErrorKind::badData, {"bad.h5", damage.word}, [&] { const Dataset dataset(path); });
  }
  writeSpoilt(folder.path() / "good.h5", {});
  EXPECT_EQ(Dataset(folder.path() / "good.h5").tokenCount(), 4);
}

TEST(Dataset, aTokenOutsideTheVocabularyIsAnErrorWhenItIsRead) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "bad.h5";
  writeSpoilt(path, {"", "", [](auto& f) { f.setAttribute("/", "vocabulary_size", 4); }, "vocabulary_size"});
  const Dataset dataset(path);
  std::vector<std::int32_t> tokens(2);
  dataset.readTokens(0, tokens);
  expectError(ErrorKind::badData, {"bad.h5", "/tokens", "token 4", "vocabulary of 4"},
              [&] { dataset.readTokens(2, tokens); });
}

TEST(Dataset, filesThatAreNoHdf5AreNoDatasets) {
  const TemporaryFolder folder;
  const std::string text = folder.write("text.h5", "not HDF5 at all");
  makeDataset(folder.path() / "good.h5", {{1, 2, 3}}, 10);
  const std::string whole = base::readFile(folder.path() / "good.h5");
  const std::string cut = folder.write("cut.h5", whole.substr(0, whole.size() / 2));
  for (const std::string& path : {text, cut}) {
    EXPECT_FALSE(isDataset(path));
    expectError(ErrorKind::badData, {path}, [&] { const Dataset dataset(path); });
  }
  expectError(ErrorKind::file, {"missing.h5"}, [&] { const Dataset dataset(folder.path() / "missing.h5"); });
}

TEST(Dataset, namesHaveAsManyFoldersInFrontAsTellThemApart) {
  const auto names = [](std::vector<std::string> paths) { return distinctNames(paths); };
  EXPECT_EQ(names({"/a/train.h5", "/b/val.h5"}), (std::vector<std::string>{"train.h5", "val.h5"}));
  EXPECT_EQ(names({"/a/val.h5", "/b/val.h5", "/c/other.h5"}),
            (std::vector<std::string>{"a/val.h5", "b/val.h5", "other.h5"}));
  EXPECT_EQ(names({"/x/a/val.h5", "/y/a/val.h5", "/a/b/val.h5"}),
            (std::vector<std::string>{"x/a/val.h5", "y/a/val.h5", "b/val.h5"}));
  EXPECT_EQ(names({"/val.h5", "/a/val.h5"}).back(), "a/val.h5");
  expectError(ErrorKind::usage, {"/a/val.h5", "given twice"}, [&] { names({"/a/val.h5", "/a/./val.h5"}); });
}

}  // namespace
}  // namespace tandem::data
