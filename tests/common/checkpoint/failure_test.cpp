#include <sys/mount.h>
#include <sys/resource.h>

#include <csignal>

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

// Limits the size of the files that this process may write, as a full disk would.
class SmallFilesOnly {
 public:
  explicit SmallFilesOnly(rlim_t bytes) {
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~SmallFilesOnly() {
    setrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, SIG_DFL);
  }

 private:
  rlimit before_{};
};

// Every rank must get the reason; step 1 stays, nothing of step 2 is left, and a later save works.
void expectFailedSave(const fs::path& run, Writer& writer, const std::string& reason, const std::string& path) {
  const Error error = errorOf([&] { saveStep(writer, 2, world()); });
  EXPECT_EQ(error.kind(), ErrorKind::file);
  EXPECT_TRUE(contains(error.message(), reason)) << error.message();
  EXPECT_TRUE(contains(error.message(), path)) << error.message();
  EXPECT_TRUE(writer.idle());
  world().barrier();
  EXPECT_EQ(namesIn(run / "checkpoints"), std::vector<std::string>{"step-00000001"});
  expectState(Reader(world(), run), 1);
}

TEST(FailedSave, aShardThatOneRankCannotWriteFailsOnAllAndThePreviousStepStays) {
  const RunFolder run(world());
  Writer writer(world(), run.path(), 2);
  saveStep(writer, 1, world());
  {
    const int last = world().size() - 1;
    std::optional<SmallFilesOnly> limit;
    if (world().rank() == last) limit.emplace(8000);
    char name[60];
    std::snprintf(name, sizeof name, "step-00000002.partial/shard-%05d-of-%05d.h5", last, world().size());
    expectFailedSave(run.path(), writer, "File too large", name);
  }
  saveStep(writer, 3, world());
  expectState(Reader(world(), run.path()), 3);
}

TEST(FailedSave, anIndexThatCannotBeWrittenFailsOnAllAndThePreviousStepStays) {
  const RunFolder run(world());
  Writer writer(world(), run.path(), 2);
  saveStep(writer, 1, world());
  {
    // The index holds the tokenizer, so a long one makes it the largest file.
    State state(2, world().rank(), world().size());
    state.metadata.tokenizer = std::string(1 << 20, 't');
    std::optional<SmallFilesOnly> limit;
    if (world().rank() == 0) limit.emplace(1 << 19);
    writer.save(state.metadata, state.tensors);
    const Error error = errorOf([&] { writer.finish(); });
    EXPECT_EQ(error.kind(), ErrorKind::file);
    EXPECT_TRUE(contains(error.message(), "step-00000002.partial/checkpoint.h5")) << error.message();
  }
  world().barrier();
  EXPECT_EQ(namesIn(run.path() / "checkpoints"), std::vector<std::string>{"step-00000001"});
}

TEST(FailedSave, isKnownWhilePollingAndThrownByTheNextSave) {
  const RunFolder run(world());
  Writer writer(world(), run.path(), 2);
  saveStep(writer, 1, world());
  const State state(2, world().rank(), world().size());
  {
    std::optional<SmallFilesOnly> limit;
    if (world().rank() == 0) limit.emplace(8000);
    writer.save(state.metadata, state.tensors);
    while (!writer.idle()) writer.poll();
  }
  EXPECT_TRUE(writer.failed());
  EXPECT_EQ(errorOf([&] { saveStep(writer, 3, world()); }).kind(), ErrorKind::file);
  EXPECT_FALSE(writer.failed());
  expectState(Reader(world(), run.path()), 1);
}

TEST(FailedSave, aFolderThatSomebodyRemovesMeanwhileFailsOnAll) {
  const RunFolder run(world());
  Writer writer(world(), run.path(), 2);
  saveStep(writer, 1, world());
  if (world().rank() == 0) fs::rename(run.path() / "checkpoints", run.path() / "moved");
  world().barrier();
  const Error error = errorOf([&] { saveStep(writer, 2, world()); });
  EXPECT_EQ(error.kind(), ErrorKind::file);
  EXPECT_TRUE(contains(error.message(), "cannot create the folder")) << error.message();
  world().barrier();
  if (world().rank() == 0) fs::rename(run.path() / "moved", run.path() / "checkpoints");
  world().barrier();
  expectState(Reader(world(), run.path()), 1);
}

TEST(FailedSave, aShardThatSomebodyRemovesBeforeTheCommitFailsOnAll) {
  const RunFolder run(world());
  Writer writer(world(), run.path(), 2);
  saveStep(writer, 1, world());
  const State state(2, world().rank(), world().size());
  writer.save(state.metadata, state.tensors);
  world().barrier();
  // Nothing is committed before every rank polls.
  if (world().rank() == 0) fs::remove_all(run.path() / "checkpoints" / "step-00000002.partial");
  world().barrier();
  const Error error = errorOf([&] { writer.finish(); });
  EXPECT_EQ(error.kind(), ErrorKind::file);
  EXPECT_TRUE(contains(error.message(), "step-00000002.partial")) << error.message();
  expectState(Reader(world(), run.path()), 1);
}

TEST(FailedSave, aRunFolderThatCannotBeMadeFailsOnAll) {
  const RunFolder run(world());
  if (world().rank() == 0) std::ofstream(run.path()) << "a file where a folder should be";
  world().barrier();
  EXPECT_EQ(errorOf([&] { Writer(world(), run.path() / "run", 2); }).kind(), ErrorKind::file);
}

// A real full disk, where this process may mount one.
TEST(FailedSave, aFullDiskIsNamedAndThePreviousStepStays) {
  const RunFolder run(world());
  std::int64_t mounted = 0;
  if (world().rank() == 0) {
    fs::create_directories(run.path());
    mounted = ::mount("tandem_test", run.path().c_str(), "tmpfs", 0, "size=700k") == 0;
  }
  mounted = comm::allReduceScalar(world(), mounted, comm::Reduction::maximum);
  if (!mounted) GTEST_SKIP() << "this process may not mount a small file system";
  {
    Writer writer(world(), run.path(), 2);
    saveStep(writer, 1, world());
    std::vector<float> values(300'000);
    const auto count = static_cast<std::int64_t>(values.size());
    const std::vector<LocalTensor> tensors = {
        {"x", DType::f32, {world().size(), count}, {{world().rank() * count, count, values.data()}}}};
    Metadata metadata;
    metadata.step = 2;
    writer.save(metadata, tensors);
    const Error error = errorOf([&] { writer.finish(); });
    EXPECT_EQ(error.kind(), ErrorKind::file);
    EXPECT_TRUE(contains(error.message(), "No space left on device")) << error.message();
    EXPECT_TRUE(contains(error.message(), run.path().string())) << error.message();
    expectState(Reader(world(), run.path()), 1);
    saveStep(writer, 3, world());
  }
  world().barrier();
  if (world().rank() == 0) {
    EXPECT_EQ(::umount(run.path().c_str()), 0);
  }
}

}  // namespace
}  // namespace tandem::checkpoint
