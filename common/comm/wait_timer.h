#pragma once
// Adds up the time that is spent waiting for exchanges which were to go on beside computing.

#include <chrono>
#include <utility>

#include "common/comm/communicator.h"

namespace tandem::comm {

class WaitTimer {
 public:
  void wait(Request& request) {
    const auto start = std::chrono::steady_clock::now();
    request.wait();
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  // Since the last call.
  double takeSeconds() { return std::exchange(seconds_, 0); }

 private:
  double seconds_ = 0;
};

}  // namespace tandem::comm
