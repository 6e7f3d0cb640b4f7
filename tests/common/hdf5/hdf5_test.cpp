#include "common/hdf5/hdf5.h"

#include <gtest/gtest.h>
#include <hdf5.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "common/base/error.h"
#include "common/base/files.h"

namespace tandem::hdf5 {
namespace {

using base::DType;
using base::Error;
using base::ErrorKind;
using base::Shape;

class Hdf5 : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("tandem_hdf5_test." + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static std::vector<float> ramp(std::int64_t count, float first = 0) {
    std::vector<float> values(static_cast<std::size_t>(count));
    std::iota(values.begin(), values.end(), first);
    return values;
  }
  // Writes the bytes of a file held in memory.
  static void writeImage(File& file, const std::filesystem::path& path) {
    const std::vector<std::byte> image = file.image();
    std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(image.data()), std::ssize(image));
  }
  void writeVector(const std::string& name, const std::string& path, const std::vector<float>& values) {
    File file = File::create(folder_ / name);
    file.create(path, DType::f32, {std::ssize(values)}).write(0, std::ssize(values), values.data());
    file.close();
  }

  std::filesystem::path folder_;
};

template <class Work>
Error errorOf(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error was thrown";
  return Error(ErrorKind::usage, "");
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_F(Hdf5, everyTypeIsReadBackAsItWasWritten) {
  const std::vector<DType> types = {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64, DType::i32,
                                    DType::u64, DType::u32, DType::u16,  DType::u8,  DType::i8};
  for (const File::Storage storage : {File::Storage::disk, File::Storage::memory}) {
    const auto path = folder_ / "types.h5";
    File file = File::create(path, storage);
    for (const DType type : types) {
      std::vector<std::byte> bytes(static_cast<std::size_t>(6 * base::byteSize(type)));
      for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + 1);
      file.create(std::string("a/b/") + base::name(type), type, {2, 3}).write(0, 6, bytes.data());
    }
    if (storage == File::Storage::memory) writeImage(file, path);
    file.close();
    const File read = File::open(path);
    EXPECT_EQ(read.members("a/b").size(), types.size());
    for (const DType type : types) {
      const Dataset dataset = read.dataset(std::string("/a/b/") + base::name(type));
      EXPECT_EQ(dataset.type(), type) << base::name(type);
      EXPECT_EQ(dataset.shape(), (Shape{2, 3}));
      std::vector<std::byte> bytes(static_cast<std::size_t>(6 * base::byteSize(type)));
      dataset.read(0, 6, bytes.data());
      for (std::size_t i = 0; i < bytes.size(); ++i) ASSERT_EQ(bytes[i], static_cast<std::byte>(i * 7 + 1));
    }
  }
}

TEST_F(Hdf5, everyRangeOfATensorIsReadAndWrittenAsIfItWereFlat) {
  for (const Shape& shape : {Shape{}, Shape{7}, Shape{3, 5}, Shape{2, 3, 4}, Shape{2, 3, 2, 3}, Shape{2, 1, 2, 2, 3}}) {
    const std::int64_t count = shape.count();
    const std::vector<float> values = ramp(count, 1);
    File file = File::create(folder_ / "range.h5");
    file.create("whole", DType::f32, shape).write(0, count, values.data());
    Dataset parts = file.create("parts", DType::f32, shape);
    for (std::int64_t begin = 0, part = 1; begin < count; begin += part, part = std::min(part + 2, count - begin)) {
      parts.write(begin, part, values.data() + begin);
    }
    file.close();
    const File read = File::open(folder_ / "range.h5");
    for (const char* name : {"whole", "parts"}) {
      const Dataset dataset = read.dataset(name);
      for (std::int64_t begin = 0; begin <= count; ++begin) {
        for (std::int64_t part = 0; begin + part <= count; ++part) {
          std::vector<float> got(static_cast<std::size_t>(part) + 1, -1);
          dataset.read(begin, part, got.data());
          for (std::int64_t i = 0; i < part; ++i) ASSERT_EQ(got[static_cast<std::size_t>(i)], float(begin + i + 1));
          ASSERT_EQ(got.back(), -1) << "nothing is written behind the range";
        }
      }
    }
  }
}

TEST_F(Hdf5, rangesOutsideOfADatasetAreRefused) {
  writeVector("a.h5", "x", ramp(5));
  const File file = File::open(folder_ / "a.h5");
  float value = 0;
  EXPECT_EQ(errorOf([&] { file.dataset("x").read(5, 1, &value); }).kind(), ErrorKind::badData);
  EXPECT_EQ(errorOf([&] { file.dataset("x").read(-1, 1, &value); }).kind(), ErrorKind::badData);
  EXPECT_TRUE(contains(errorOf([&] { file.dataset("y"); }).message(), "a.h5:y"));
}

TEST_F(Hdf5, aGrowingDatasetHoldsAllThatWasAppended) {
  for (const std::int64_t chunk : {3, 64, 1000}) {
    File file = File::create(folder_ / "grow.h5");
    Dataset dataset = file.createGrowing("tokens", DType::f32, chunk);
    std::int64_t total = 0;
    for (const std::int64_t count : {1, 0, 5, 300, 2, 64, 128}) {
      const std::vector<float> values = ramp(count, static_cast<float>(total));
      dataset.append(count, values.data());
      total += count;
    }
    file.close();
    std::vector<float> got(static_cast<std::size_t>(total));
    File::open(folder_ / "grow.h5").dataset("tokens").read(0, total, got.data());
    EXPECT_EQ(got, ramp(total));
  }
}

TEST_F(Hdf5, anEmptyGrowingDatasetIsReadAsEmpty) {
  File file = File::create(folder_ / "empty.h5");
  { const Dataset dataset = file.createGrowing("tokens", DType::u16, 100); }
  file.close();
  EXPECT_EQ(File::open(folder_ / "empty.h5").dataset("tokens").count(), 0);
}

TEST_F(Hdf5, textsAndAttributesOfAnyLengthAreKept) {
  const std::string longText(300'000, 'x');
  File file = File::create(folder_ / "text.h5");
  file.writeText("empty", "");
  file.writeText("notes/unicode", "\xc3\xa4 \xe6\x97\xa5 text");
  file.writeText("long", longText);
  file.setAttribute("/", "format", "tandem-test");
  file.setAttribute("/", "format", "tandem-dataset");
  file.setAttribute("/", "sources", longText);
  file.setAttribute("notes", "version", std::int64_t{1} << 40);
  file.setAttribute("notes", "nothing", "");
  file.close();
  const File read = File::open(folder_ / "text.h5");
  EXPECT_EQ(read.readText("empty"), "");
  EXPECT_EQ(read.readText("/notes/unicode"), "\xc3\xa4 \xe6\x97\xa5 text");
  EXPECT_EQ(read.readText("long"), longText);
  EXPECT_EQ(read.textAttribute("/", "format"), "tandem-dataset");
  EXPECT_EQ(read.textAttribute("/", "sources"), longText);
  EXPECT_EQ(read.integerAttribute("notes", "version"), std::int64_t{1} << 40);
  EXPECT_EQ(read.textAttribute("notes", "nothing"), "");
  EXPECT_EQ(read.textAttribute("notes", "other"), std::nullopt);
  EXPECT_EQ(errorOf([&] { (void)read.integerAttribute("/", "format"); }).kind(), ErrorKind::badData);
  EXPECT_EQ(errorOf([&] { (void)read.textAttribute("notes", "version"); }).kind(), ErrorKind::badData);
  EXPECT_EQ(errorOf([&] { (void)read.readText("notes"); }).kind(), ErrorKind::badData);
  EXPECT_EQ(read.members("/"), (std::vector<std::string>{"empty", "long", "notes"}));
  EXPECT_TRUE(read.has("notes/unicode"));
  EXPECT_FALSE(read.has("notes/other"));
  EXPECT_FALSE(read.has("long/other"));
}

TEST_F(Hdf5, aReservedDatasetIsFilledByWhoeverWritesAtItsOffset) {
  const std::vector<float> values = ramp(100'000, 5);
  const auto bytes = std::as_bytes(std::span(values));
  File file = File::create("shard.h5", File::Storage::memory);
  const std::int64_t offset = file.createReserved("model/weight", DType::f32, {100'000}).offset();
  file.writeText("after", "the data");
  std::vector<std::byte> image(static_cast<std::size_t>(file.imageSize()));
  file.copyImage(0, image);
  ASSERT_LE(offset + std::ssize(bytes), std::ssize(image));
  std::memcpy(image.data() + offset, bytes.data(), bytes.size());
  std::ofstream(folder_ / "shard.h5", std::ios::binary)
      .write(reinterpret_cast<const char*>(image.data()), std::ssize(image));
  const File read = File::open(folder_ / "shard.h5");
  std::vector<float> got(values.size());
  read.dataset("model/weight").read(0, std::ssize(values), got.data());
  EXPECT_EQ(got, values);
  EXPECT_EQ(read.readText("after"), "the data");
}

TEST_F(Hdf5, aVirtualDatasetShowsPiecesOfShardsAsOneTensor) {
  for (const Shape& shape : {Shape{30}, Shape{5, 6}, Shape{2, 3, 5}, Shape{3, 2, 1, 5}}) {
    std::vector<VirtualPiece> pieces;
    const std::vector<std::int64_t> cuts = {0, 7, 8, 21,
                                            30};  // piece i lies in shard i % 2, with one element before it
    std::vector<float> shards[2] = {{-1}, {-1}};
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      auto& shard = shards[i % 2];
      pieces.push_back(
          {"shard-" + std::to_string(i % 2) + ".h5", "x", 0, std::ssize(shard), cuts[i], cuts[i + 1] - cuts[i]});
      for (std::int64_t element = cuts[i]; element < cuts[i + 1]; ++element)
        shard.push_back(static_cast<float>(element));
    }
    for (std::size_t i = 0; i < pieces.size(); ++i) pieces[i].sourceCount = std::ssize(shards[i % 2]);
    writeVector("shard-0.h5", "x", shards[0]);
    writeVector("shard-1.h5", "x", shards[1]);
    File file = File::create("checkpoint.h5", File::Storage::memory);
    { const Dataset dataset = file.createVirtual("model/x", DType::f32, shape, pieces); }
    writeImage(file, folder_ / "checkpoint.h5");
    const File read = File::open(folder_ / "checkpoint.h5");
    EXPECT_EQ(errorOf([&] { (void)read.dataset("model/x"); }).kind(), ErrorKind::badData)
        << "not where none is expected";
    const Dataset dataset = read.dataset("model/x", VirtualSources::shards);
    EXPECT_TRUE(dataset.isVirtual());
    EXPECT_EQ(dataset.shape(), shape);
    std::vector<float> got(30);
    dataset.read(0, 30, got.data());
    EXPECT_EQ(got, ramp(30));
  }
}

class ForeignVirtual : public Hdf5 {
 protected:
  // The error of opening a virtual dataset of `count` elements whose source is shard-0.h5:x of `sourceCount` elements.
  Error open(const std::string& source, std::int64_t count = 10, std::int64_t sourceCount = 10) {
    File file = File::create("checkpoint.h5", File::Storage::memory);
    const std::vector<VirtualPiece> pieces = {{source, "x", sourceCount, 0, 0, 10}};
    { const Dataset dataset = file.createVirtual("x", DType::f32, {count}, pieces); }
    writeImage(file, folder_ / "checkpoint.h5");
    const File read = File::open(folder_ / "checkpoint.h5");
    return errorOf([&] { (void)read.dataset("x", VirtualSources::shards); });
  }
};

TEST_F(ForeignVirtual, sourcesOutsideOfTheFolderAreRefused) {
  writeVector("shard-0.h5", "x", ramp(10));
  writeVector("other.h5", "x", ramp(10));
  for (const std::string& source :
       {(folder_ / "shard-0.h5").string(), "../" + folder_.filename().string() + "/shard-0.h5",
        std::string("shard-0.h5/../shard-0.h5"), std::string("other.h5"), std::string(".")}) {
    const Error error = open(source);
    EXPECT_EQ(error.kind(), ErrorKind::badData);
    EXPECT_TRUE(contains(error.message(), "none of the shards beside it")) << error.message();
  }
}

TEST_F(ForeignVirtual, aSourceThatIsMissingOrNoHdf5OrOfAnotherTypeOrLengthIsRefused) {
  EXPECT_EQ(open("shard-0.h5").kind(), ErrorKind::file);
  std::ofstream(folder_ / "shard-0.h5") << "this is no HDF5 file";
  EXPECT_TRUE(contains(open("shard-0.h5").message(), "no HDF5 file"));
  writeVector("shard-0.h5", "y", ramp(10));
  EXPECT_TRUE(contains(open("shard-0.h5").message(), "there is no"));
  writeVector("shard-0.h5", "x", ramp(9));
  EXPECT_TRUE(contains(open("shard-0.h5").message(), "too short"));
  writeVector("shard-0.h5", "x", ramp(10));
  EXPECT_TRUE(contains(open("shard-0.h5", 20).message(), "10 of its 20 elements"));
}

TEST_F(ForeignVirtual, aSourceThatIsVirtualItselfIsRefused) {
  writeVector("shard-1.h5", "x", ramp(10));
  File nested = File::create("shard-0.h5", File::Storage::memory);
  const std::vector<VirtualPiece> pieces = {{"shard-1.h5", "x", 10, 0, 0, 10}};
  { const Dataset dataset = nested.createVirtual("x", DType::f32, {10}, pieces); }
  writeImage(nested, folder_ / "shard-0.h5");
  const Error error = open("shard-0.h5");
  EXPECT_EQ(error.kind(), ErrorKind::badData);
  EXPECT_TRUE(contains(error.message(), "virtual")) << error.message();
}

TEST_F(Hdf5, aTruncatedOrForeignFileIsBadDataNamingTheFile) {
  writeVector("a.h5", "x", ramp(1000));
  const std::string content = base::readFile(folder_ / "a.h5");
  for (const std::size_t length :
       {std::size_t{0}, std::size_t{5}, std::size_t{100}, content.size() / 2, content.size() - 1}) {
    std::ofstream(folder_ / "b.h5", std::ios::binary) << content.substr(0, length);
    const Error error = errorOf([&] { (void)File::open(folder_ / "b.h5").dataset("x"); });
    EXPECT_EQ(error.kind(), ErrorKind::badData) << length;
    EXPECT_TRUE(contains(error.message(), "b.h5")) << error.message();
  }
  const Error error = errorOf([&] { (void)File::open(folder_ / "b.h5"); });
  EXPECT_TRUE(contains(error.message(), "truncated file: eof")) << "HDF5's own reason is given: " << error.message();
  EXPECT_EQ(errorOf([&] { (void)File::open(folder_ / "none.h5"); }).kind(), ErrorKind::file);
  EXPECT_EQ(errorOf([&] { (void)File::open(folder_); }).kind(), ErrorKind::badData);
}

// Files as others may make them, with the library itself.
class ForeignFile : public Hdf5 {
 protected:
  void SetUp() override {
    Hdf5::SetUp();
    writeVector("other.h5", "x", ramp(5));
    (void)libraryVersion();  // starts the library with errors switched off
    file_ = H5Fcreate((folder_ / "a.h5").c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    ASSERT_GE(file_, 0);
  }
  // A dataset of 1000 values of 32 bits with this layout, without any written.
  void makeDataset(const char* name, hid_t creation, hsize_t count = 1000) const {
    const hid_t space = H5Screate_simple(1, &count, nullptr);
    const hid_t dataset = H5Dcreate2(file_, name, H5T_STD_I32LE, space, H5P_DEFAULT, creation, H5P_DEFAULT);
    ASSERT_GE(dataset, 0);
    H5Dclose(dataset);
    H5Sclose(space);
    if (creation != H5P_DEFAULT) H5Pclose(creation);
  }
  File reopen() {
    H5Fclose(file_);
    return File::open(folder_ / "a.h5");
  }
  static void expectRefused(const File& file, const std::string& path, const std::string& reason) {
    const Error error = errorOf([&] { (void)file.dataset(path); });
    EXPECT_EQ(error.kind(), ErrorKind::badData);
    EXPECT_TRUE(contains(error.message(), reason)) << error.message();
    EXPECT_TRUE(contains(error.message(), "a.h5:" + path)) << error.message();
  }

  hid_t file_ = -1;
};

TEST_F(ForeignFile, softAndExternalLinksAreNotFollowed) {
  makeDataset("real", H5P_DEFAULT);
  H5Lcreate_soft("/real", file_, "soft", H5P_DEFAULT, H5P_DEFAULT);
  H5Lcreate_soft("/", file_, "folder", H5P_DEFAULT, H5P_DEFAULT);
  H5Lcreate_external("other.h5", "/x", file_, "external", H5P_DEFAULT, H5P_DEFAULT);
  const File file = reopen();
  for (const char* path : {"soft", "external", "folder/real"}) {
    EXPECT_FALSE(file.has(path));
    expectRefused(file, path, "not followed");
    EXPECT_EQ(errorOf([&] { (void)file.readText(path); }).kind(), ErrorKind::badData);
    EXPECT_EQ(errorOf([&] { (void)file.textAttribute(path, "format"); }).kind(), ErrorKind::badData);
  }
  EXPECT_TRUE(file.has("real"));
}

TEST_F(ForeignFile, dataKeptInOtherFilesIsNotRead) {
  const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_external(creation, "/etc/passwd", 0, 4000);
  makeDataset("x", creation);
  expectRefused(reopen(), "x", "in other files");
}

TEST_F(ForeignFile, aShapeThatTheFileCannotHoldIsRefusedBeforeAnythingIsAllocated) {
  makeDataset("neverWritten", H5P_DEFAULT, hsize_t{1} << 50);
  const hid_t chunked = H5Pcreate(H5P_DATASET_CREATE);
  const hsize_t chunk = 1000;
  H5Pset_chunk(chunked, 1, &chunk);
  H5Pset_deflate(chunked, 9);
  makeDataset("noChunks", chunked, hsize_t{1} << 50);
  makeDataset("tooMany", H5P_DEFAULT, hsize_t{1} << 60);
  const File file = reopen();
  expectRefused(file, "neverWritten", "truncated, damaged, or was never filled");
  expectRefused(file, "noChunks", "truncated, damaged, or was never filled");
  expectRefused(file, "tooMany", "more elements than any file can hold");
}

TEST_F(ForeignFile, compressedAndBigEndianNumbersAreRead) {
  const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
  const hsize_t chunk = 1000;
  H5Pset_chunk(creation, 1, &chunk);
  H5Pset_deflate(creation, 9);
  const hsize_t count = 100'000;
  const hid_t space = H5Screate_simple(1, &count, nullptr);
  const hid_t dataset = H5Dcreate2(file_, "x", H5T_IEEE_F32BE, space, H5P_DEFAULT, creation, H5P_DEFAULT);
  const std::vector<float> values(count, 3.0F);  // as compressible as can be
  H5Dwrite(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
  H5Dclose(dataset);
  H5Sclose(space);
  H5Pclose(creation);
  const File file = reopen();
  EXPECT_EQ(file.dataset("x").type(), DType::f32);
  std::vector<float> got(count);
  file.dataset("x").read(0, static_cast<std::int64_t>(count), got.data());
  EXPECT_EQ(got, values);
}

TEST_F(ForeignFile, typesThatAreNoNumbersAndTextsOfVariableLengthAreRefused) {
  const hsize_t count = 1;
  const hid_t space = H5Screate_simple(1, &count, nullptr);
  const hid_t text = H5Tcopy(H5T_C_S1);
  H5Tset_size(text, H5T_VARIABLE);
  H5Dclose(H5Dcreate2(file_, "text", text, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  H5Aclose(H5Acreate2(file_, "text", text, space, H5P_DEFAULT, H5P_DEFAULT));
  H5Dclose(H5Dcreate2(file_, "odd", H5T_STD_I16LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  H5Tclose(text);
  H5Sclose(space);
  const File file = reopen();
  EXPECT_EQ(errorOf([&] { (void)file.dataset("odd"); }).kind(), ErrorKind::badData);
  EXPECT_EQ(errorOf([&] { (void)file.dataset("text"); }).kind(), ErrorKind::badData);
  EXPECT_TRUE(contains(errorOf([&] { (void)file.readText("text"); }).message(), "variable length"));
  EXPECT_TRUE(contains(errorOf([&] { (void)file.textAttribute("/", "text"); }).message(), "variable length"));
}

TEST_F(Hdf5, aFlippedByteAnywhereNeverCrashesTheReader) {
  File file = File::create(folder_ / "a.h5");
  const std::vector<float> values = ramp(50);
  file.create("group/x", DType::f32, {5, 10}).write(0, 50, values.data());
  file.createGrowing("tokens", DType::f32, 20).append(50, values.data());
  file.writeText("text", "some text");
  file.setAttribute("/", "format", "tandem");
  file.close();
  const std::string content = base::readFile(folder_ / "a.h5");
  for (std::size_t at = 0; at<content.size(); at += content.size()> 4000 ? 17U : 1U) {
    std::string damaged = content;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x40);
    std::ofstream(folder_ / "b.h5", std::ios::binary) << damaged;
    try {
      const File read = File::open(folder_ / "b.h5");
      std::vector<float> got(50);
      (void)read.textAttribute("/", "format");
      (void)read.readText("text");
      for (const char* name : {"group/x", "tokens"}) {
        const Dataset dataset = read.dataset(name);
        if (dataset.count() == 50 && dataset.type() == DType::f32) dataset.read(0, 50, got.data());
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::badData) << error.what();
    }
  }
}

TEST_F(Hdf5, writingPastTheRoomOfTheDiskIsAFileErrorAndNothingCrashesLater) {
  if (access("/dev/full", W_OK) != 0) GTEST_SKIP() << "there is no /dev/full";
  const std::vector<float> values = ramp(1'000'000);
  for (const std::int64_t chunk : {0, 1000, 100'000}) {
    const Error error = errorOf([&] {
      File file = File::create("/dev/full");
      if (chunk == 0) {
        file.create("group/x", DType::f32, {1'000'000}).write(0, 1'000'000, values.data());
      } else {
        file.createGrowing("x", DType::f32, chunk).append(1'000'000, values.data());
      }
      file.close();
    });
    EXPECT_EQ(error.kind(), ErrorKind::file);
    EXPECT_TRUE(contains(error.message(), "No space left on device")) << error.message();
  }
  EXPECT_EQ(errorOf([&] { File::create(folder_ / "no folder" / "a.h5"); }).kind(), ErrorKind::file);
}

TEST_F(Hdf5, aDatasetHeldAfterItsFileWasClosedIsAnErrorNotACrash) {
  File file = File::create(folder_ / "a.h5");
  Dataset dataset = file.create("x", DType::f32, {5});
  file.close();
  float value = 0;
  EXPECT_THROW(dataset.read(0, 1, &value), Error);
  file = File::create(folder_ / "b.h5");
  file = File::create(folder_ / "c.h5");
  EXPECT_NO_THROW(file.close());
}

}  // namespace
}  // namespace tandem::hdf5
