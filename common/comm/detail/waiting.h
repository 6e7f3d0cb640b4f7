#pragma once
// How a rank waits for others. Most waits are shorter than falling asleep and waking up take, so that it first stays
// awake between its questions; then it sleeps, which leaves the processor to ranks that share it and saves power.
//
// Open MPI yields the processor at every question where there are more ranks than processors. That is no rest for the
// kernel: ranks that yielded some hundred thousand times a second were seen to keep everything else on the machine from
// running for minutes (Linux 6.18). So questions are few: each comes when an eighth of the wait so far has passed again.

#include <chrono>

namespace tandem::comm::detail {

class Waiting {
 public:
  // Between two questions.
  void pause() const;

 private:
  using Clock = std::chrono::steady_clock;

  Clock::time_point start_ = Clock::now();
};

}  // namespace tandem::comm::detail
