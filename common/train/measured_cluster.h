#pragma once
// The machines that a job runs on, as the planner wants them described, from a second of measuring.

#include "common/comm/communicator.h"
#include "common/sharding/cluster.h"
#include "common/train/device.h"

namespace tandem::train {

// Rates are those of the slowest rank, all ranks measuring at once as they compute at once; `memoryBytes` is what a
// rank may take. Nodes with unlike numbers of ranks count as nodes of one rank each. Collective.
sharding::Cluster measureCluster(comm::Communicator& ranks, const Device& device, base::DType storage,
                                 std::int64_t memoryBytes);

}  // namespace tandem::train
