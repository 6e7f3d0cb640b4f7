#include "common/base/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "common/base/error.h"

namespace tandem::base {
namespace {

[[noreturn]] void fail(const std::string& what, const std::filesystem::path& path, int errorNumber) {
  throw Error(ErrorKind::file, what + " '" + path.string() + "': " + systemErrorText(errorNumber));
}

std::span<const std::byte> bytesOf(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace

File File::openForReading(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail("cannot open", path, errno);
  return File(descriptor, path);
}

File File::create(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor < 0) fail("cannot create", path, errno);
  return File(descriptor, path);
}

File File::openForWriting(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) fail("cannot open for writing", path, errno);
  return File(descriptor, path);
}

File::File(File&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(path_, other.path_);
  return *this;
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::int64_t File::readAt(std::int64_t offset, std::span<std::byte> bytes) const {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = ::pread(descriptor_, bytes.data() + done, bytes.size() - done,
                                offset + static_cast<std::int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("cannot read", path_, errno);
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return static_cast<std::int64_t>(done);
}

void File::writeAt(std::int64_t offset, std::span<const std::byte> bytes) const {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t put = ::pwrite(descriptor_, bytes.data() + done, bytes.size() - done,
                                 offset + static_cast<std::int64_t>(done));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail("cannot write", path_, errno);
    done += static_cast<std::size_t>(put);
  }
}

std::int64_t File::size() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) fail("cannot ask the size of", path_, errno);
  return status.st_size;
}

void File::resize(std::int64_t bytes) const {
  if (::ftruncate(descriptor_, bytes) != 0) fail("cannot give a size to", path_, errno);
}

void File::startWriting(std::int64_t offset, std::int64_t bytes) const {
  ::sync_file_range(descriptor_, offset, bytes, SYNC_FILE_RANGE_WRITE);
}

void File::sync() const {
  if (::fsync(descriptor_) != 0) fail("cannot sync", path_, errno);
}

void File::close() {
  const int descriptor = std::exchange(descriptor_, -1);
  if (descriptor >= 0 && ::close(descriptor) != 0) fail("cannot close", path_, errno);
}

std::string readFile(const std::filesystem::path& path) {
  const File file = File::openForReading(path);
  std::string content;
  constexpr std::size_t block = std::size_t{1} << 20;
  for (;;) {  // by blocks, not by size: a pipe has none
    const std::size_t before = content.size();
    content.resize(before + block);
    const auto target = std::as_writable_bytes(std::span(content.data() + before, block));
    const std::int64_t got = file.readAt(static_cast<std::int64_t>(before), target);
    content.resize(before + static_cast<std::size_t>(got));
    if (got < static_cast<std::int64_t>(block)) return content;
  }
}

void replaceFile(const std::filesystem::path& path, std::string_view content) {
  const std::filesystem::path temporary = path.string() + ".partial";
  try {
    File file = File::create(temporary);
    file.writeAt(0, bytesOf(content));
    file.sync();
    file.close();
  } catch (const Error&) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw;
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) fail("cannot replace", path, errno);
  syncFolder(path.has_parent_path() ? path.parent_path() : ".");
}

void syncFolder(const std::filesystem::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail("cannot open the folder", folder, errno);
  const int result = ::fsync(descriptor);
  const int errorNumber = errno;
  ::close(descriptor);
  if (result != 0 && errorNumber != EINVAL) fail("cannot sync the folder", folder, errorNumber);
}

void createFolders(const std::filesystem::path& folder) {
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  if (failure) throw Error(ErrorKind::file, "cannot create the folder '" + folder.string() + "': " + failure.message());
}

}  // namespace tandem::base
