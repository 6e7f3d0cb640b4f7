#include <chrono>
#include <thread>

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

TEST(Checkpoint, everyTensorIsReadBackWhole) {
  const RunFolder run(world());
  {
    Writer writer(world(), run.path(), 2);
    saveStep(writer, 7, world());
  }
  const Reader reader(world(), run.path());
  EXPECT_EQ(reader.folder(), stepFolder(run.path(), "step-00000007"));
  expectState(reader, 7);
}

TEST(Checkpoint, isReadOnAnotherNumberOfRanks) {
  const RunFolder run(world());
  {
    Writer writer(world(), run.path(), 2);
    saveStep(writer, 3, world());
  }
  const auto part = world().split(world().rank() == 0 ? 0 : 1, world().rank());
  expectState(Reader(*part, run.path()), 3);
  const auto alone = world().split(world().rank(), 0);
  const RunFolder own(*alone);
  {
    Writer writer(*alone, own.path(), 2);
    saveStep(writer, 4, *alone);
  }
  const std::string first = comm::broadcastText(world(), own.path().string(), 0);
  expectState(Reader(world(), first), 4);
  world().barrier();
}

TEST(Checkpoint, isWholeToEveryToolThatReadsHdf5) {
  const RunFolder run(world());
  {
    Writer writer(world(), run.path(), 2);
    saveStep(writer, 5, world());
  }
  const auto file = hdf5::File::open(stepFolder(run.path(), "step-00000005") / "checkpoint.h5");
  EXPECT_EQ(file.textAttribute("/", "format"), "tandem-checkpoint");
  EXPECT_EQ(file.integerAttribute("/", "version"), 1);
  EXPECT_EQ(file.integerAttribute("/", "step"), 5);
  EXPECT_EQ(file.readText("tokenizer"), R"({"name": "tokenizer"})");
  std::size_t number = 0;
  for (const TensorKind& kind : tensorKinds()) {
    const hdf5::Dataset dataset = file.dataset(kind.name, hdf5::VirtualSources::shards);
    EXPECT_EQ(dataset.type(), kind.type);
    EXPECT_EQ(dataset.shape(), kind.shape);
    std::vector<std::byte> got(static_cast<std::size_t>(dataset.count() * base::byteSize(kind.type)));
    dataset.read(0, dataset.count(), got.data());
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], expectedByte(5, number, static_cast<std::int64_t>(i))) << kind.name << " " << i;
    }
    ++number;
  }
}

TEST(Checkpoint, whatChangesAfterSaveReturnedIsNotSaved) {
  const RunFolder run(world());
  Writer writer(world(), run.path(), 2);
  std::vector<float> values(100'000, 1.0F);
  const std::int64_t begin = world().rank() * 100'000;
  const std::vector<LocalTensor> tensors = {
      {"x", DType::f32, {world().size(), 100'000}, {{begin, 100'000, values.data()}}}};
  Metadata metadata;
  metadata.step = 1;
  writer.save(metadata, tensors);
  std::fill(values.begin(), values.end(), 2.0F);
  writer.finish();
  const Reader reader(world(), run.path());
  std::vector<float> got(100'000);
  reader.read("x", DType::f32, {world().size(), 100'000}, begin, 100'000, got.data());
  EXPECT_EQ(got, std::vector<float>(100'000, 1.0F));
}

TEST(Checkpoint, isCommittedByPollingAlone) {
  const RunFolder run(world());
  Writer writer(world(), run.path(), 2);
  const State state(2, world().rank(), world().size());
  writer.save(state.metadata, state.tensors);
  const auto start = std::chrono::steady_clock::now();
  while (!writer.idle() && std::chrono::steady_clock::now() - start < std::chrono::seconds(20)) {
    writer.poll();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(writer.idle());
  EXPECT_FALSE(writer.failed());
  EXPECT_EQ(completeSteps(run.path()), std::vector<std::int64_t>{2});
  writer.finish();
}

TEST(Checkpoint, isFinishedWhenItsWriterGoes) {
  const RunFolder run(world());
  {
    Writer writer(world(), run.path(), 2);
    const State state(2, world().rank(), world().size());
    writer.save(state.metadata, state.tensors);
  }
  expectState(Reader(world(), run.path()), 2);
}

TEST(Checkpoint, isGivenUpWithoutTraceWhenAnExceptionEndsTheRun) {
  const RunFolder run(world());
  try {
    Writer writer(world(), run.path(), 2);
    saveStep(writer, 1, world());
    const State state(2, world().rank(), world().size());
    writer.save(state.metadata, state.tensors);
    throw Error(ErrorKind::numeric, "the run ends");
  } catch (const Error&) {
  }
  world().barrier();
  expectState(Reader(world(), run.path()), 1);
  world().barrier();
  const Writer writer(world(), run.path(), 2);
  EXPECT_EQ(namesIn(run.path() / "checkpoints"), std::vector<std::string>{"step-00000001"});
}

TEST(Checkpoint, onlyTheNewestStepsAreKept) {
  const RunFolder run(world());
  {
    Writer writer(world(), run.path(), 2);
    for (const std::int64_t step : {10, 20, 30, 40}) saveStep(writer, step, world());
  }
  world().barrier();
  EXPECT_EQ(namesIn(run.path() / "checkpoints"), (std::vector<std::string>{"step-00000030", "step-00000040"}));
  EXPECT_EQ(completeSteps(run.path()), (std::vector<std::int64_t>{30, 40}));
  world().barrier();
  {
    Writer writer(world(), run.path(), 0);
    saveStep(writer, 35, world());
    saveStep(writer, 50, world());
  }
  EXPECT_EQ(completeSteps(run.path()), (std::vector<std::int64_t>{30, 35, 40, 50}));
  expectState(Reader(world(), stepFolder(run.path(), "step-00000035")), 35);
}

TEST(Checkpoint, aStepThatIsThereAlreadyIsReplaced) {
  const RunFolder run(world());
  Writer writer(world(), run.path(), 2);
  saveStep(writer, 10, world());
  if (world().rank() == 0) flipByte(stepFolder(run.path(), "step-00000010") / "checkpoint.h5", 100);
  world().barrier();
  saveStep(writer, 10, world());
  expectState(Reader(world(), run.path()), 10);
  EXPECT_EQ(namesIn(run.path() / "checkpoints"), std::vector<std::string>{"step-00000010"});
}

TEST(Checkpoint, aRunFolderInUseIsAUsageError) {
  const RunFolder run(world());
  {
    const Writer writer(world(), run.path(), 2);
    const Error error = errorOf([&] { Writer(world(), run.path(), 2); });
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_TRUE(contains(error.message(), "in use by process")) << error.message();
  }
  EXPECT_NO_THROW(Writer(world(), run.path(), 2));
}

TEST(Checkpoint, whatAnInterruptedRunLeftIsRemovedButOnlyUnderTheLock) {
  const RunFolder run(world());
  const auto folder = run.path() / "checkpoints";
  {
    const Writer writer(world(), run.path(), 2);
    if (world().rank() == 0) {
      std::filesystem::create_directories(folder / "step-00000001.partial" / "sub");
      std::filesystem::create_directories(folder / "step-00000002.deleting");
      std::filesystem::create_directories(folder / "mine.partial");
    }
    world().barrier();
    EXPECT_THROW(Writer(world(), run.path(), 2), Error);
    EXPECT_EQ(namesIn(folder).size(), 3U);
    world().barrier();
  }
  EXPECT_TRUE(completeSteps(run.path()).empty());
  world().barrier();
  const Writer writer(world(), run.path(), 2);
  EXPECT_EQ(namesIn(folder), std::vector<std::string>{"mine.partial"});
}

TEST(Checkpoint, aMissingTensorOrAnotherShapeOrTypeIsBadData) {
  const RunFolder run(world());
  {
    Writer writer(world(), run.path(), 2);
    saveStep(writer, 1, world());
  }
  const Reader reader(world(), run.path());
  std::vector<std::byte> target(10'000);
  const auto read = [&](const char* name, DType type, const base::Shape& shape, std::int64_t begin,
                        std::int64_t count) {
    return errorOf([&] { reader.read(name, type, shape, begin, count, target.data()); });
  };
  EXPECT_TRUE(contains(read("model/none", DType::f32, {37}, 0, 1).message(), "has no tensor model/none"));
  EXPECT_TRUE(contains(read("model/bias", DType::bf16, {37}, 0, 1).message(), "is float32 [37]; expected is bfloat16"));
  EXPECT_TRUE(contains(read("model/bias", DType::f32, {38}, 0, 1).message(), "expected is float32 [38]"));
  EXPECT_EQ(read("model/bias", DType::f32, {37}, 36, 2).kind(), ErrorKind::badData);
  EXPECT_FALSE(reader.has("model/none"));
}

TEST(Checkpoint, piecesThatLeaveAGapOrOverlapAreRefusedOnEveryRank) {
  const RunFolder run(world());
  Writer writer(world(), run.path(), 2);
  saveStep(writer, 1, world());
  const std::vector<float> values(20);
  const auto save = [&](std::vector<Piece> pieces, const char* name = "x") {
    if (world().rank() != 0) pieces.clear();
    Metadata metadata;
    metadata.step = 2;
    const std::vector<LocalTensor> tensors = {{name, DType::f32, {10}, pieces}};
    return errorOf([&] { writer.save(metadata, tensors); }).message();
  };
  const float* data = values.data();
  EXPECT_TRUE(contains(save({{0, 4, data}, {5, 5, data}}), "element 4 of the tensor x [10] is in no piece"));
  EXPECT_TRUE(contains(save({{0, 9, data}}), "element 9 of the tensor x [10] is in no piece"));
  EXPECT_TRUE(contains(save({{0, 6, data}, {5, 5, data}}), "element 5 of the tensor x [10] is in more than one piece"));
  EXPECT_TRUE(contains(save({{0, 10, data}}, "tokenizer"), "cannot be the name of a tensor"));
  world().barrier();
  EXPECT_EQ(namesIn(run.path() / "checkpoints"), std::vector<std::string>{"step-00000001"}) << "nothing is left of it";
  world().barrier();
  saveStep(writer, 3, world());
  expectState(Reader(world(), run.path()), 3);
}

}  // namespace
}  // namespace tandem::checkpoint
