#include "common/base/files.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>
#include <vector>

#include "common/base/error.h"
#include "common/base/file_copy.h"
#include "tests/run_program.h"

namespace tandem::base {
namespace {

namespace fs = std::filesystem;

class Files : public testing::Test {
 protected:
  test::TemporaryFolder folder_;
  const fs::path folder = folder_.path();
  const fs::path path = folder / "file";
};

std::vector<std::byte> bytesOf(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  return {bytes.begin(), bytes.end()};
}

// The error's text must name the path and the system's reason.
void expectFileError(const std::function<void()>& work, const std::string& pathPart, const std::string& reason) {
  try {
    work();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::file);
    EXPECT_NE(error.message().find(pathPart), std::string::npos) << error.message();
    EXPECT_NE(error.message().find(reason), std::string::npos) << error.message();
  }
}

TEST_F(Files, writtenBytesAreReadBackAtTheirOffsets) {
  File file = File::create(path);
  file.writeAt(4, bytesOf("world"));
  file.writeAt(0, bytesOf("new "));
  file.sync();
  EXPECT_EQ(file.size(), 9);
  file.close();
  const File again = File::openForReading(path);
  std::vector<std::byte> buffer(20);
  EXPECT_EQ(again.readAt(2, buffer), 7);  // fewer only at the end of the file
  buffer.resize(7);
  EXPECT_EQ(buffer, bytesOf("w world"));
  EXPECT_EQ(readFile(path), "new world");
}

TEST_F(Files, aPipeIsReadToItsEnd) {
  const fs::path pipe = "/proc/self/status";  // like a pipe it has no size
  EXPECT_NE(readFile(pipe).find("VmRSS"), std::string::npos);
}

TEST_F(Files, largeFilesAreReadWhole) {
  std::string content(5'000'001, 'a');
  content.back() = 'z';
  replaceFile(path, content);
  EXPECT_EQ(readFile(path), content);
}

TEST_F(Files, failuresNameThePathAndTheReason) {
  expectFileError([&] { readFile(folder / "absent"); }, "absent", "No such file");
  expectFileError([&] { File::create(folder / "no" / "folder"); }, "no/folder", "No such file");
  expectFileError([&] { readFile(folder); }, folder.string(), "directory");
  expectFileError([&] { createFolders("/proc/none"); }, "/proc/none", "");
  expectFileError([&] { syncFolder(folder / "absent"); }, "absent", "No such file");
  expectFileError([&] { File::create("/dev/full").writeAt(0, bytesOf("x")); }, "/dev/full", "No space left");
}

TEST_F(Files, replacingKeepsTheOldContentWhenTheNewCannotBeWritten) {
  replaceFile(path, "old");
  // A file size limit stands for a full disk; in a child process, since it can't be raised again.
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {.rlim_cur = 1000, .rlim_max = 1000};
    setrlimit(RLIMIT_FSIZE, &limit);
    try {
      replaceFile(path, std::string(5000, 'n'));
    } catch (const Error& error) {
      _exit(error.kind() == ErrorKind::file ? 7 : 8);
    }
    _exit(9);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_EQ(readFile(path), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 1) << "a partial file was left";
}

TEST_F(Files, aReaderSeesTheOldContentOrTheNewNeverAPart) {
  const std::string first(100'000, 'a'), second(100'000, 'b');
  replaceFile(path, first);
  std::jthread writer([&](const std::stop_token& stop) {
    for (int i = 0; !stop.stop_requested(); ++i) replaceFile(path, i % 2 ? first : second);
  });
  for (int i = 0; i < 200; ++i) {
    const std::string seen = readFile(path);
    ASSERT_TRUE(seen == first || seen == second) << seen.size();
  }
}

TEST_F(Files, foldersAreMadeWithTheirParents) {
  createFolders(folder / "a" / "b" / "c");
  createFolders(folder / "a" / "b" / "c");
  EXPECT_TRUE(fs::is_directory(folder / "a" / "b" / "c"));
  syncFolder(folder / "a");
}

TEST_F(Files, movingAFileMovesItsDescriptor) {
  File first = File::create(path);
  const int descriptor = first.descriptor();
  File second = std::move(first);
  EXPECT_EQ(second.descriptor(), descriptor);
  second.writeAt(0, bytesOf("x"));
  second.close();
  second.close();
  EXPECT_EQ(readFile(path), "x");
}

TEST_F(Files, aPartIsCopiedIntoAnotherFile) {
  const fs::path other = folder / "other";
  const File source = File::create(path), target = File::create(other);
  source.writeAt(0, bytesOf("0123456789"));
  target.writeAt(0, bytesOf("abcdefghij"));
  copyBytes(source, 2, target, 4, 5);
  EXPECT_EQ(readFile(other), "abcd23456j");
  copyBytes(source, 0, target, 12, 1);
  EXPECT_EQ(readFile(other), std::string("abcd23456j\0\0000", 13));
  expectFileError([&] { copyBytes(source, 8, target, 0, 3); }, "byte 10", "too early");
}

TEST_F(Files, aCopyThatTheSystemRefusesGoesThroughMemory) {
  const File source = File::create(path);
  const std::string text(3 << 20, 'x');  // more than a block
  source.writeAt(0, bytesOf(text));
  source.writeAt(0, bytesOf("begin"));
  copyBytes(source, 0, source, std::ssize(text) - 5, 5);
  EXPECT_EQ(readFile(path).substr(text.size() - 6), "xbegin");
  // Ranges of one file that overlap are refused by copy_file_range.
  copyBytes(source, 0, source, 2, std::ssize(text));
  EXPECT_EQ(readFile(path).substr(0, 8), "bebegin" + std::string("x"));
}

}  // namespace
}  // namespace tandem::base
