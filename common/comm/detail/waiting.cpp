#include "common/comm/detail/waiting.h"

#include <sys/prctl.h>

#include <algorithm>
#include <thread>

namespace tandem::comm::detail {
namespace {

using std::chrono::microseconds;

constexpr microseconds awake(50), longestSleep(200);
constexpr unsigned long exactly = 1000;  // nanoseconds

// The kernel lets a thread sleep 50 microseconds too long, to wake up several at once, unless it asks for better.
void askForExactSleeps() {
  static thread_local const int asked = prctl(PR_SET_TIMERSLACK, exactly);
  static_cast<void>(asked);
}

}  // namespace

void Waiting::pause() const {
  const Clock::time_point now = Clock::now();
  const Clock::duration soFar = now - start_, interval = std::min<Clock::duration>(soFar / 8, longestSleep);
  if (soFar < awake) {
    while (Clock::now() < now + interval) continue;
  } else {
    askForExactSleeps();
    std::this_thread::sleep_for(interval);
  }
}

}  // namespace tandem::comm::detail
