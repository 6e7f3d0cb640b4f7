#include "common/comm/nccl_fault.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace tandem::comm {
namespace {

// A range of versions with a fault on aarch64, whose weaker order of memory they do not hold against or whose machines
// show it; where two hold, the first.
struct Range {
  int first, last;
  bool deadlocks;
  const char* what;
};
constexpr std::array<Range, 3> faults{{
    {22809, 22902, true, "2.28.9 to 2.29.2 deadlock on aarch64"},          // NVIDIA/nccl issue 2353
    {0, 22902, false, "2.29.3 or newer is advised on aarch64"},            // before it
    {23007, 23007, false, "the receiver over RoCE was seen to deadlock"},  // NVIDIA/nccl issue 2334
}};

}  // namespace

std::optional<NcclFault> ncclFault(const std::string& version, const std::string& architecture) {
  int major = 0, minor = 0, patch = 0;
  if (architecture != "aarch64" || std::sscanf(version.c_str(), "%d.%d.%d", &major, &minor, &patch) != 3) {
    return std::nullopt;
  }
  const int number = major * 10000 + minor * 100 + patch;
  const auto* found =
      std::ranges::find_if(faults, [&](const Range& one) { return number >= one.first && number <= one.last; });
  if (found == faults.end()) return std::nullopt;
  return NcclFault{found->deadlocks, found->what};
}

}  // namespace tandem::comm
