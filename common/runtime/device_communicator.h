#pragma once
// Communicators for memory of a device: the contract of common/comm on buffers that the host cannot touch.
//
// An exchange begins when what the compute stream has been given before it is done, and what that stream is given
// after wait() begins when the exchange is done; in between both go on side by side. Scalars and texts of the host are
// not for these: they go over the group that these are made of.

#include <memory>
#include <string>

#include "common/comm/communicator.h"
#include "kernels/backend.h"

namespace tandem::runtime {

// By NCCL, on a stream of its own. One device a rank. Collective.
std::unique_ptr<comm::Communicator> makeNcclCommunicator(comm::Communicator& ranks, kernels::Backend& backend,
                                                         kernels::Stream& compute, bool allowKnownBadNccl);

// Through pinned memory of the host and the group's own way (MPI): needs no NCCL, and ranks may share a device.
std::unique_ptr<comm::Communicator> makeStagedCommunicator(comm::Communicator& ranks, kernels::Backend& backend,
                                                           kernels::Stream& compute);

}  // namespace tandem::runtime
