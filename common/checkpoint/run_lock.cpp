#include "common/checkpoint/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "common/base/error.h"
#include "common/base/log.h"

namespace tandem::checkpoint {
namespace {

namespace fs = std::filesystem;
using base::Error;
using base::ErrorKind;

std::string firstLine(int descriptor) {
  char text[200] = {};
  const ssize_t got = ::pread(descriptor, text, sizeof text - 1, 0);
  const std::string content(text, got > 0 ? static_cast<std::size_t>(got) : 0);
  return content.substr(0, content.find('\n'));
}

}  // namespace

RunLock::RunLock(const fs::path& run) {
  const fs::path path = run / ".lock";
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor_ < 0) {
    throw Error(ErrorKind::file, "cannot open the lock " + path.string() + ": " + base::systemErrorText(errno));
  }
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    const int reason = errno;
    const std::string holder = firstLine(descriptor_);
    if (reason == EWOULDBLOCK) {
      ::close(descriptor_);
      throw Error(ErrorKind::usage, "the run folder " + run.string() + " is in use" +
                                        (holder.empty() ? "" : " by " + holder) +
                                        ": wait for that run to end, or choose another folder");
    }
    TANDEM_LOG_ALL(warning) << "cannot lock " << path.string() << " (" << base::systemErrorText(reason)
                            << "): nothing stops a second run from writing there too";
  }
  const std::string self = "process " + std::to_string(::getpid()) + " on " + base::identity().host + "\n";
  if (::ftruncate(descriptor_, 0) != 0 || ::pwrite(descriptor_, self.data(), self.size(), 0) < 0) {
    TANDEM_LOG_ALL(warning) << "cannot write into " << path.string() << ": " << base::systemErrorText(errno);
  }
}

RunLock::~RunLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace tandem::checkpoint
