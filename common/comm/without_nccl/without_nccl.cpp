// What stands in for common/comm/nccl in a build without NCCL.
#include "common/comm/nccl_group.h"

namespace tandem::comm {

std::unique_ptr<NcclGroup> makeNcclGroup(Communicator&, bool) {
  throw base::Error(base::ErrorKind::usage, "NCCL cannot be used: " + whyNoNccl());
}

std::string whyNoNccl() { return "this build has no NCCL"; }

std::string ncclVersion() { return "not in this build"; }

}  // namespace tandem::comm
