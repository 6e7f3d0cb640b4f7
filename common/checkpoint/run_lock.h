#pragma once
// One run at a time writes into a run folder.

#include <filesystem>

namespace tandem::checkpoint {

// The exclusive lock of a run folder, which exists; given back by the kernel however the process ends. Throws Error of
// kind usage when another process holds it, naming that.
class RunLock {
 public:
  explicit RunLock(const std::filesystem::path& run);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace tandem::checkpoint
