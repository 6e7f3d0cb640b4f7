// Ends a job in the way that its argument names. Started by session_test under mpirun.

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "common/base/log.h"
#include "common/comm/session.h"

namespace {

using tandem::base::Error;
using tandem::base::ErrorKind;
namespace comm = tandem::comm;

void exhaustMemory() {
#if defined(__SANITIZE_ADDRESS__)
  throw std::bad_alloc();  // what the next lines come to; the sanitizer would end the process instead
#endif
  const std::size_t tooMuch = std::numeric_limits<std::size_t>::max() / 4;
  std::vector<char> bytes;
  bytes.reserve(tooMuch);
}

// What MPI has started for this process, and what of its settings a child of it would see.
void showSurroundings() {
  std::ifstream list("/proc/self/task/" + std::to_string(::getpid()) + "/children");
  for (std::string child; list >> child;) std::printf("child\n");
  for (const char* name : {"OMPI_MCA_ess_singleton_isolated", "OMPI_MCA_pml", "OMPI_MCA_btl"}) {
    if (const char* value = std::getenv(name)) std::printf("%s=%s\n", name, value);
  }
}

int run(comm::Communicator& world, const std::string& way) {
  const int last = world.size() - 1;
  if (way == "success") {
    std::printf("rank %d of %d on this host %d\n", world.rank(), world.size(), world.ranksOnThisHost());
  } else if (way == "surroundings") {
    showSurroundings();
  } else if (way == "different-codes") {
    return world.rank() == last ? 75 : 0;
  } else if (way == "agreed") {
    comm::agreeOn(world, [&] {
      if (world.rank() == last) throw Error(ErrorKind::badData, "line 7 is damaged");
    });
  } else if (way == "agreed-then-slow-clean-up") {
    struct Slow {
      int rank;
      ~Slow() { std::this_thread::sleep_for(std::chrono::milliseconds(rank == 0 ? 1500 : 0)); }
    } const slow{world.rank()};
    comm::agreeOn(world, [&] { throw Error(ErrorKind::badData, "line 7 is damaged"); });
  } else if (way == "alike") {
    throw Error(ErrorKind::usage, "the batch is not divisible");
  } else if (way == "alone") {
    if (world.rank() == last) throw Error(ErrorKind::badData, "only I saw it");
    world.barrier();
  } else if (way == "alone-at-the-end") {
    if (world.rank() == last) throw Error(ErrorKind::badData, "only I saw it");
  } else if (way == "out-of-memory") {
    if (world.rank() == last) exhaustMemory();
    world.barrier();
  } else if (way == "foreign-exception") {
    throw std::runtime_error("thrown by a library");
  } else if (way == "stuck") {
    world.barrier();
    double value = 1;
    if (world.rank() != last) world.allReduce({&value, tandem::base::DType::f64, 1});
    std::this_thread::sleep_for(std::chrono::seconds(60));
  } else if (way == "slow") {
    if (world.rank() == last) std::this_thread::sleep_for(std::chrono::milliseconds(1300));
    world.barrier();
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return comm::Session::run(argc, argv, [&](comm::Communicator& world) { return run(world, argc > 1 ? argv[1] : ""); });
}
