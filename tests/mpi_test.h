#pragma once
// For tests that run under mpirun (tandem_test with RANKS): every rank runs every test, and the program fails when any
// rank's test does. A collective that hangs for 30 s is ended by the watchdog, so a deadlock is a failed test.

#include "common/comm/communicator.h"

namespace tandem::test {

// All ranks of the program.
comm::Communicator& world();

}  // namespace tandem::test
