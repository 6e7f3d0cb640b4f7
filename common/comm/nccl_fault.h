#pragma once
// Versions of NCCL that are known to fail.

#include <optional>
#include <string>

namespace tandem::comm {

struct NcclFault {
  bool deadlocks = false;  // for ever, and without a word; else it is advised against
  std::string what;        // "2.28.9 to 2.29.2 deadlock on aarch64"
};

// Of a version ("2.28.9") on a kind of processor ("aarch64"); none where none is known.
std::optional<NcclFault> ncclFault(const std::string& version, const std::string& architecture);

}  // namespace tandem::comm
