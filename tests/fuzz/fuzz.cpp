#include "tests/fuzz/fuzz.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace tandem::fuzz {

void demand(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "what must hold does not: %s\n", what);
  std::abort();
}

MemoryFile::MemoryFile(std::string_view bytes) : descriptor_(::memfd_create("fuzz", MFD_CLOEXEC)) {
  demand(descriptor_ >= 0, "a file in memory can be made");
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t put = ::write(descriptor_, bytes.data() + done, bytes.size() - done);
    demand(put > 0, "a file in memory can be written");
    done += static_cast<std::size_t>(put);
  }
}

MemoryFile::~MemoryFile() { ::close(descriptor_); }

std::string MemoryFile::path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

}  // namespace tandem::fuzz
