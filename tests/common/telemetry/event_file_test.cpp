// The event files are what TensorBoard's own writer would write, and after a resume every step stands there once.

#include "common/telemetry/event_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "common/base/files.h"
#include "tests/common/data/expect_error.h"
#include "tests/common/data/temporary_folder.h"

namespace tandem::telemetry {
namespace {

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    for (const int shift : {4, 0}) text += "0123456789abcdef"[(static_cast<unsigned char>(byte) >> shift) & 15];
  }
  return text;
}

std::string recordOf(std::int64_t step) { return eventRecord(1e9, step, {{"training/loss", 1.5}}); }

TEST(EventFile, aRecordIsByteForByteThatOfTensorBoardsWriter) {
  // tensorboard 2.21: RecordWriter(file).write(Event(...).SerializeToString()) with these values
  EXPECT_EQ(
      hex(eventRecord(1764550000.25, 300, {{"training/loss", 1.5}, {"speed/mfu", 0.25}})),
      "36000000000000004f578cef090000105c394bda4110ac022a280a140a0d747261696e696e672f6c6f7373150000c03f0a100a0973706565"
      "642f6d6675150000803eccac4a50");
}

TEST(EventFile, recordsUpToAStepAreKeptAndADamagedTailIsNot) {
  const std::string two = recordOf(1) + recordOf(300), all = two + recordOf(301);
  const auto size = static_cast<std::int64_t>(two.size());
  EXPECT_EQ(bytesUpTo(all, 300), size);
  EXPECT_EQ(bytesUpTo(all, 301), static_cast<std::int64_t>(all.size()));
  EXPECT_EQ(bytesUpTo(all, 0), 0);
  for (std::size_t cut = two.size(); cut < all.size(); ++cut) EXPECT_EQ(bytesUpTo(all.substr(0, cut), 400), size);
  for (std::size_t i = two.size(); i < all.size(); ++i) {
    std::string damaged = all;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    EXPECT_EQ(bytesUpTo(damaged, 400), size) << "byte " << i - two.size();
  }
}

class EventFileTest : public testing::Test {
 protected:
  // Of all files, by name.
  std::map<std::string, std::string> contents() const {
    std::map<std::string, std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      found[entry.path().filename().string()] = base::readFile(entry.path());
    }
    return found;
  }

  data::TemporaryFolder folder_;
  std::filesystem::path path_ = folder_.path() / "tensorboard";
};

TEST_F(EventFileTest, eachStartBeginsALaterFileAndCutsTheOlderOnesBack) {
  EventFile first(path_, 0);
  for (std::int64_t step = 1; step <= 3; ++step) first.append(StepMetrics{.step = step});
  const std::string whole = contents().begin()->second;
  EventFile second(path_, 2);  // in the same second
  const auto files = contents();
  ASSERT_EQ(files.size(), 2u);
  const auto& [oldName, old] = *files.begin();
  EXPECT_TRUE(whole.starts_with(old));
  EXPECT_EQ(bytesUpTo(whole, 2), static_cast<std::int64_t>(old.size()));
  EXPECT_LT(old.size(), whole.size());
  // The newer one tells a reader that has seen more which steps hold no longer.
  const std::string& fresh = files.rbegin()->second;
  EXPECT_EQ(bytesUpTo(fresh, 3), static_cast<std::int64_t>(fresh.size()));
  EXPECT_GT(bytesUpTo(fresh, 2), 0);
  EXPECT_LT(bytesUpTo(fresh, 2), static_cast<std::int64_t>(fresh.size()));
}

TEST_F(EventFileTest, comesAfterFilesFromTheFutureAndLeavesOtherFilesAlone) {
  folder_.write("tensorboard/events.out.tfevents.2000000000.other", "no record");
  folder_.write("tensorboard/notes.txt", "mine");
  EventFile file(path_, 0);
  const auto files = contents();
  EXPECT_EQ(files.at("notes.txt"), "mine");
  EXPECT_EQ(files.at("events.out.tfevents.2000000000.other"), "no record");
  EXPECT_EQ(files.lower_bound("events.out.tfevents.2000000001")->first.rfind("events.out.tfevents.2000000001.", 0), 0u);
}

TEST_F(EventFileTest, aFolderThatCannotBeMadeIsNamed) {
  folder_.write("tensorboard", "a file");
  data::expectError(base::ErrorKind::file, {"tensorboard"}, [&] { EventFile(path_, 0); });
}

TEST(EventFile, whatIsNotKnownIsLeftOut) {
  const auto tags = [](const StepMetrics& metrics) {
    std::set<std::string> found;
    for (const Scalar& scalar : scalarsOf(metrics)) found.insert(scalar.tag);
    return found;
  };
  EXPECT_FALSE(tags({}).contains("speed/mfu"));
  EXPECT_TRUE(tags({.mfu = 0.4}).contains("speed/mfu"));
  EXPECT_EQ(scalarsOf(EvaluationMetrics{.evaluation = "val.h5", .loss = 2})[0].tag, "evaluation/val.h5/loss");
}

}  // namespace
}  // namespace tandem::telemetry
