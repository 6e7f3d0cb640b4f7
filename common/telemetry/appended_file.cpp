#include "common/telemetry/appended_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "common/base/error.h"

namespace tandem::telemetry {
namespace {

[[noreturn]] void fail(const std::string& what, const std::filesystem::path& path) {
  throw base::Error(base::ErrorKind::file, what + " '" + path.string() + "': " + base::systemErrorText(errno));
}

}  // namespace

AppendedFile::AppendedFile(std::filesystem::path path)
    : path_(std::move(path)), descriptor_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
  if (descriptor_ < 0) fail("cannot open", path_);
}

AppendedFile::AppendedFile(AppendedFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

AppendedFile& AppendedFile::operator=(AppendedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

AppendedFile::~AppendedFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void AppendedFile::append(std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t put = ::write(descriptor_, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail("cannot write to", path_);
    bytes.remove_prefix(static_cast<std::size_t>(put));
  }
}

void AppendedFile::sync() const {
  if (::fsync(descriptor_) != 0) fail("cannot sync", path_);
}

}  // namespace tandem::telemetry
