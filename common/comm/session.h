#pragma once
// The life of MPI in a program, and how it ends. Run alone, a program is one rank.
//
//   int main(...) { return comm::Session::run(argc, argv, [](comm::Communicator& world) { ...; return 0; }); }

#include <chrono>
#include <functional>
#include <string>

#include "common/comm/communicator.h"

namespace tandem::comm {

class Session {
 public:
  // Starts MPI (serialised threads: one thread at a time may communicate), sets base::identity, starts logging, calls
  // the body with the group of all ranks and ends MPI. All ranks return the same code: the body's (the largest, should
  // they differ), or after an Error the exit code of its kind.
  //
  // An Error that escapes is logged once per cause. If every rank brings one (agreed or alike on all ranks), the ranks
  // end together; if it was this rank's alone, the message is logged and MPI_Abort ends the others with the same code.
  // After an error the process leaves by _exit once all have reported: HDF5's clean-up inside MPI_Finalize may crash on
  // files that the failure left half open, and would turn the exit code into 139.
  static int run(int argc, char** argv, const std::function<int(Communicator& world)>& body);
};

// Watches the calls of a communicator: a call that takes longer than the limit means a lost rank or a deadlock. Then
// every rank prints its rank, host and last collective (name, bytes, how long), and the job is aborted with exit
// code 1. A rank that is in no call then says since when, which names the one that the others wait for. A limit of zero
// switches it off. The default is 10 minutes; the environment's TANDEM_WATCHDOG ("90s", "2h", "0") wins over the
// default and over this call.
void setWatchdogLimit(std::chrono::seconds limit);

// "Open MPI 4.1.4"
std::string libraryVersion();

}  // namespace tandem::comm
