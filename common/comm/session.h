#pragma once
// The life of MPI in a program, and how it ends. Run alone, a program is one rank.
//
//   int main(...) { return comm::Session::run(argc, argv, [](comm::Communicator& world) { ...; return 0; }); }

#include <chrono>
#include <functional>

#include "common/comm/communicator.h"

namespace tandem::comm {

class Session {
 public:
  // Starts MPI (serialised threads at least), sets base::identity, calls the body with the group of all ranks and ends
  // MPI. An Error that escapes is printed once per cause on stderr and becomes its kind's exit code. If it was agreed
  // (every rank threw it) MPI is finalised and all ranks return the code; if it was this rank's alone, the message is
  // printed and MPI_Abort ends the other ranks with the same code.
  static int run(int argc, char** argv, const std::function<int(Communicator& world)>& body);
};

// Watches the calls of a communicator: a call that takes longer than the limit means a lost rank or a deadlock. Then
// every rank's last collective (name, bytes, how long ago), its rank and its host are printed and the job is aborted
// with exit code 1. A limit of zero switches it off. The default is 10 minutes (TANDEM_WATCHDOG overrides: "90s").
void setWatchdogLimit(std::chrono::seconds limit);

}  // namespace tandem::comm
