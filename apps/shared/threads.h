#pragma once
// How many threads a rank should use when nobody says.

#include "common/comm/communicator.h"

namespace tandem::app {

// The physical cores that this rank may run on, each shared evenly with the ranks that may run on it too; at least 1.
// So it is right whether ranks are bound to cores, share a job's allotment or roam the host. Collective.
int fairThreadCount(comm::Communicator& world);

}  // namespace tandem::app
