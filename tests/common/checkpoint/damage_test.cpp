#include <fstream>

#include "common/base/hash.h"
#include "common/hdf5/hdf5.h"
#include "tests/common/checkpoint/state.h"
#include "tests/mpi_test.h"

namespace tandem::checkpoint {
namespace {

using base::DType;
using base::Error;
using base::ErrorKind;
using tandem::test::world;
using namespace test;
namespace fs = std::filesystem;

// Steps 1 and 2 of a run; damage is done to step 2.
class DamagedCheckpoint : public testing::Test {
 protected:
  void SetUp() override {
    Writer writer(world(), run_.path(), 0);
    saveStep(writer, 1, world());
    saveStep(writer, 2, world());
  }
  fs::path newest() const { return stepFolder(run_.path(), "step-00000002"); }
  fs::path lastShard() const {
    std::vector<std::string> names = namesIn(newest());
    std::erase_if(names, [](const std::string& name) { return !name.starts_with("shard-"); });
    return newest() / names.back();
  }

  template <class Damage>
  void damage(const Damage& work) {
    if (world().rank() == 0) work();
    world().barrier();
  }
  // The run opens at step 1; the step itself is refused with this text.
  void expectPassedOver(const std::string& reason) {
    expectState(Reader(world(), run_.path()), 1);
    const Error error = errorOf([&] { Reader(world(), newest()); });
    EXPECT_EQ(error.kind(), ErrorKind::badData);
    EXPECT_TRUE(contains(error.message(), reason)) << error.message();
    EXPECT_TRUE(contains(error.message(), newest().string())) << error.message();
    world().barrier();
  }

  const RunFolder run_{world()};
};

TEST_F(DamagedCheckpoint, anIntactOneIsTheNewest) { expectState(Reader(world(), run_.path()), 2); }

TEST_F(DamagedCheckpoint, aMissingShardIsSeen) {
  const fs::path shard = lastShard();
  damage([&] { fs::remove(shard); });
  expectPassedOver("No such file");
}

TEST_F(DamagedCheckpoint, thatIsVerifiedAsItIsReadGivesNothingOfADamagedShard) {
  const fs::path shard = lastShard();
  expectState(Reader(world(), run_.path(), Verification::whenRead), 2);
  world().barrier();  // all have read
  damage([&] { flipByte(shard, static_cast<std::int64_t>(fs::file_size(shard)) / 2); });
  if (world().size() > 1) {  // as ever
    expectState(Reader(world(), run_.path(), Verification::whenRead), 1);
    return;
  }
  const Reader reader(world(), run_.path(), Verification::whenRead);
  for (const Reader::Entry& entry : reader.tensors()) {
    if (entry.shape.count() == 0) continue;
    std::vector<std::byte> values(static_cast<std::size_t>(entry.shape.count() * base::byteSize(entry.type)));
    const Error error =
        errorOf([&] { reader.read(entry.name, entry.type, entry.shape, 0, entry.shape.count(), values.data()); });
    EXPECT_EQ(error.kind(), ErrorKind::badData);
    EXPECT_TRUE(contains(error.message(), shard.filename().string())) << error.message();
  }
}

TEST_F(DamagedCheckpoint, itsMetadataAreReadWithoutItsShards) {
  const fs::path shard = lastShard();
  damage([&] { fs::remove(shard); });
  EXPECT_EQ(readMetadata(run_.path()).progress, "2000");
  world().barrier();
  damage([&] { flipByte(newest() / "checkpoint.h5", 3000); });
  EXPECT_EQ(readMetadata(run_.path()).progress, "1000");
  EXPECT_EQ(errorOf([&] { readMetadata(newest()); }).kind(), ErrorKind::badData);
  world().barrier();
}

TEST_F(DamagedCheckpoint, aTruncatedShardIsSeen) {
  const fs::path shard = lastShard();
  damage([&] { fs::resize_file(shard, fs::file_size(shard) - 1); });
  expectPassedOver("truncated or damaged");
}

TEST_F(DamagedCheckpoint, aFlippedBitAnywhereIsSeen) {
  for (const fs::path& path : {lastShard(), newest() / "checkpoint.h5"}) {
    const auto size = static_cast<std::int64_t>(fs::file_size(path));
    for (const std::int64_t offset : {std::int64_t{0}, size / 3, size / 2, size - 1}) {
      damage([&] { flipByte(path, offset); });
      expectPassedOver("does not match its checksum");
      damage([&] { flipByte(path, offset); });
    }
  }
  damage([&] { flipByte(newest() / "checksums.xxh128", 3); });
  expectPassedOver("does not match its checksum");
}

TEST_F(DamagedCheckpoint, aMissingOrForeignIndexIsSeen) {
  damage([&] { std::ofstream(newest() / "checkpoint.h5") << "this is no HDF5 file"; });
  expectPassedOver("does not match its checksum");
  damage([&] { fs::remove(newest() / "checkpoint.h5"); });
  expectPassedOver("No such file");
  damage([&] { fs::remove(newest() / "checksums.xxh128"); });
  expectPassedOver("No such file");
}

TEST_F(DamagedCheckpoint, whenNoneIsIntactAllReasonsAreGiven) {
  damage([&] {
    fs::remove(newest() / "checkpoint.h5");
    flipByte(stepFolder(run_.path(), "step-00000001") / "checkpoint.h5", 100);
  });
  const Error error = errorOf([&] { Reader(world(), run_.path()); });
  EXPECT_EQ(error.kind(), ErrorKind::badData);
  EXPECT_TRUE(contains(error.message(), "step-00000002/checkpoint.h5")) << error.message();
  EXPECT_TRUE(contains(error.message(), "step-00000001/checkpoint.h5")) << error.message();
  EXPECT_EQ(errorOf([&] { Reader(world(), run_.path() / "checkpoints" / "step-00000002"); }).kind(),
            ErrorKind::badData);
  EXPECT_EQ(errorOf([&] { Reader(world(), run_.path() / "none"); }).kind(), ErrorKind::usage);
  EXPECT_EQ(errorOf([&] { Reader(world(), stepFolder(run_.path(), "")); }).kind(), ErrorKind::badData);
}

TEST_F(DamagedCheckpoint, savingItAgainReplacesIt) {
  damage([&] { fs::remove(newest() / "checkpoint.h5"); });
  {
    Writer writer(world(), run_.path(), 2);
    saveStep(writer, 2, world());
  }
  expectState(Reader(world(), run_.path()), 2);
}

// Files that are well formed and have the right checksums, but were made by somebody else.
class ForgedCheckpoint : public DamagedCheckpoint {
 protected:
  // Replaces the index by one with this layout.
  void forge(const std::string& layout, const std::string& format = "tandem-checkpoint", std::int64_t version = 1) {
    damage([&] {
      hdf5::File file = hdf5::File::create(newest() / "checkpoint.h5");
      file.setAttribute("/", "format", format);
      file.setAttribute("/", "version", version);
      for (const char* name : {"tokenizer", "configuration", "options", "progress"}) file.writeText(name, "");
      file.writeText("layout", layout);
      file.close();
      const std::string hash = base::hashFile(newest() / "checkpoint.h5");
      std::ofstream(newest() / "checksums.xxh128") << hash << "  checkpoint.h5\n";
    });
  }
  static std::string oneShard(const std::string& file, std::int64_t bytes, const std::string& hash,
                              const std::string& tensors = "[]") {
    return R"({"shards": [{"file": ")" + file + R"(", "bytes": )" + std::to_string(bytes) + R"(, "xxh128": ")" + hash +
           R"("}], "tensors": )" + tensors + "}";
  }
};

TEST_F(ForgedCheckpoint, shardsOutsideOfTheFolderAreRefused) {
  for (const char* name : {"/etc/passwd", "../step-00000001/shard-00000-of-00001.h5", "shard-/../../x", "other.h5"}) {
    forge(oneShard(name, 1, ""));
    expectPassedOver("");
    EXPECT_TRUE(contains(errorOf([&] { Reader(world(), newest()); }).message(), "cannot be the name of a shard"));
  }
}

TEST_F(ForgedCheckpoint, aLayoutThatMakesNoSenseIsRefused) {
  const std::string head = R"([{"name": "x", "type": "float32", "shape": )";
  for (const std::string& layout :
       {std::string("not JSON"), std::string("[]"), std::string(R"({"shards": 5, "tensors": []})"),
        oneShard("shard-0.h5", -1, ""), oneShard("shard-0.h5", 1, "", head + R"([2], "pieces": [[0, 0, 0, 1]]}])"),
        oneShard("shard-0.h5", 1, "", head + R"([2], "pieces": [[1, 0, 0, 2]]}])"),
        oneShard("shard-0.h5", 1, "", head + R"([2], "pieces": [[0, -1, 0, 2]]}])"),
        oneShard("shard-0.h5", 1, "", head + R"([9000000000, 9000000000, 9000000000], "pieces": []}])"),
        oneShard("shard-0.h5", 1, "", head + R"([-2], "pieces": []}])"),
        oneShard("shard-0.h5", 1, "", head + R"([2.5], "pieces": [[0, 0, 0, 2]]}])"),
        oneShard("shard-0.h5", 1, "", head + R"([2], "pieces": [[0, 9223372036854775807, 0, 2]]}])"),
        oneShard("shard-0.h5", 1, "",
                 head + R"([1], "pieces": [[0, 0, 0, 1]]}, {"name": "a", "type": "uint8", "shape": [1],)" +
                     R"( "pieces": [[0, 0, 0, 1]]}])"),
        std::string(200000, '['),
        oneShard("shard-0.h5", 1, "", R"([{"name": "x", "type": "float33", "shape": [0], "pieces": []}])")}) {
    forge(layout);
    expectState(Reader(world(), run_.path()), 1);
    EXPECT_EQ(errorOf([&] { Reader(world(), newest()); }).kind(), ErrorKind::badData) << layout;
    world().barrier();
  }
}

TEST_F(ForgedCheckpoint, anotherFormatOrVersionIsRefused) {
  forge(R"({"shards": [], "tensors": []})", "something else");
  expectPassedOver("is no checkpoint");
  forge(R"({"shards": [], "tensors": []})", "tandem-checkpoint", 2);
  expectPassedOver("has version 2");
}

TEST_F(ForgedCheckpoint, aShardThatIsVirtualItselfIsNotRead) {
  damage([&] {
    hdf5::File file = hdf5::File::create("shard-x.h5", hdf5::File::Storage::memory);
    const std::vector<hdf5::VirtualPiece> pieces = {{"/etc/passwd", "x", 2, 0, 0, 2}};
    file.createVirtual("x", DType::f32, {2}, pieces);
    const std::vector<std::byte> image = file.image();
    std::ofstream(newest() / "shard-x.h5", std::ios::binary)
        .write(reinterpret_cast<const char*>(image.data()), std::ssize(image));
  });
  const fs::path shard = newest() / "shard-x.h5";
  forge(oneShard("shard-x.h5", static_cast<std::int64_t>(fs::file_size(shard)), base::hashFile(shard),
                 R"([{"name": "x", "type": "float32", "shape": [2], "pieces": [[0, 0, 0, 2]]}])"));
  const Reader reader(world(), newest());
  float values[2];
  const Error error = errorOf([&] { reader.read("x", DType::f32, {2}, 0, 2, values); });
  EXPECT_EQ(error.kind(), ErrorKind::badData);
  EXPECT_TRUE(contains(error.message(), "virtual dataset")) << error.message();
}

}  // namespace
}  // namespace tandem::checkpoint
