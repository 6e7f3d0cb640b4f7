#include "common/base/file_copy.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "common/base/error.h"

namespace tandem::base {
namespace {

[[noreturn]] void failAtEnd(std::int64_t offset) {
  throw Error(ErrorKind::file, "the file that is copied ends at byte " + std::to_string(offset) + ", too early");
}

// Through memory, as any two files can be copied.
void copyThroughMemory(const File& source, std::int64_t sourceOffset, const File& target, std::int64_t targetOffset,
                       std::int64_t bytes) {
  constexpr std::int64_t most = 1 << 20;
  std::vector<std::byte> block(static_cast<std::size_t>(std::min(bytes, most)));
  for (std::int64_t done = 0; done < bytes;) {
    const std::int64_t wanted = std::min(most, bytes - done);
    const std::int64_t got =
        source.readAt(sourceOffset + done, std::span(block).first(static_cast<std::size_t>(wanted)));
    if (got == 0) failAtEnd(sourceOffset + done);
    target.writeAt(targetOffset + done, std::span(block).first(static_cast<std::size_t>(got)));
    done += got;
  }
}

}  // namespace

void copyBytes(const File& source, std::int64_t sourceOffset, const File& target, std::int64_t targetOffset,
               std::int64_t bytes) {
  off64_t from = sourceOffset, to = targetOffset;
  for (std::int64_t left = bytes; left > 0;) {
    const ssize_t copied = ::copy_file_range(source.descriptor(), &from, target.descriptor(), &to,
                                             static_cast<std::size_t>(left), 0);
    if (copied < 0 && errno == EINTR) continue;
    // Two file systems, one that cannot do it, a full disk: the plain way works, or says what is wrong and where.
    if (copied < 0) return copyThroughMemory(source, from, target, to, left);
    if (copied == 0) failAtEnd(from);
    left -= copied;
  }
}

}  // namespace tandem::base
