#include "common/comm/detail/watchdog.h"

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "common/comm/session.h"

namespace tandem::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// The last call of this process: under way if active, otherwise done since `since`.
struct Call {
  const char* name = "none yet";
  std::int64_t bytes = 0;
  bool active = false;
  Clock::time_point since = Clock::now();
  std::uint64_t number = 0;  // changes with every begin and end
};

// One process has one line of calls (MPI is used by one thread at a time), so one record.
struct State {
  std::mutex mutex;
  std::condition_variable changed;
  Call call;
  int depth = 0;
  std::chrono::seconds limit = std::chrono::minutes(10);
  bool limitFromEnvironment = false;
  bool stopping = false;
  std::thread thread;
};

State& state() {
  static State instance;
  return instance;
}

double secondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::string describe(const Call& call) {
  const base::Identity& self = base::identity();
  const std::string who =
      "watchdog: rank " + std::to_string(self.rank) + " of " + std::to_string(self.ranks) + " on " + self.host + ": ";
  const std::string what = call.name + (call.bytes > 0 ? " of " + base::formatBytes(call.bytes) : std::string());
  const std::string howLong = base::formatDuration(secondsSince(call.since));
  if (call.active) return who + what + " has been waiting for " + howLong;
  return who + "in no collective for " + howLong + ", the last one was: " + what;
}

void watch(void (*abortJob)()) {
  State& s = state();
  std::uint64_t reported = UINT64_MAX;
  std::unique_lock lock(s.mutex);
  while (!s.stopping) {
    const milliseconds limit = s.limit;
    const milliseconds tick = std::clamp<milliseconds>(limit / 8, milliseconds(20), milliseconds(1000));
    s.changed.wait_for(lock, tick);
    const Call call = s.call;
    const bool late = limit.count() > 0 && Clock::now() - call.since > limit;
    if (s.stopping || !late || call.number == reported) continue;
    reported = call.number;
    lock.unlock();
    TANDEM_LOG_ALL(error) << describe(call) << " (limit "
                          << base::formatDuration(static_cast<double>(limit.count()) / 1000) << ")";
    lock.lock();
    if (!call.active) continue;
    // The other ranks reach their limit about now: leave them the time to say where they are.
    const milliseconds grace = std::min<milliseconds>(limit / 2, milliseconds(5000));
    s.changed.wait_for(lock, grace, [&] { return s.stopping || s.call.number != call.number; });
    if (s.stopping || s.call.number != call.number) continue;
    lock.unlock();
    TANDEM_LOG_ALL(error) << "watchdog: a rank is lost, or the ranks disagree about the next collective; the job is "
                             "aborted (TANDEM_WATCHDOG sets the limit)";
    abortJob();
    lock.lock();
  }
}

}  // namespace

void setWatchdogLimit(std::chrono::seconds limit) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (!s.limitFromEnvironment) s.limit = limit;
  s.changed.notify_all();
}

namespace detail {

CallScope::CallScope(const char* name, std::int64_t bytes, std::atomic<double>& waited)
    : waited_(waited), start_(Clock::now()) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  outermost_ = s.depth++ == 0;
  if (outermost_) s.call = {.name = name, .bytes = bytes, .active = true, .since = start_, .number = s.call.number + 1};
}

CallScope::~CallScope() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  --s.depth;
  if (!outermost_) return;
  const Clock::time_point now = Clock::now();
  s.call.active = false;
  s.call.since = now;
  ++s.call.number;
  waited_ += std::chrono::duration<double>(now - start_).count();
}

Watchdog::Watchdog(void (*abortJob)()) {
  State& s = state();
  if (const char* text = std::getenv("TANDEM_WATCHDOG")) {
    s.limit = base::parseDuration(text);
    s.limitFromEnvironment = true;
  }
  s.stopping = false;
  s.call = {};
  sigset_t all, before;  // signals are for the main thread
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  s.thread = std::thread(&watch, abortJob);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Watchdog::~Watchdog() {
  State& s = state();
  {
    const std::lock_guard lock(s.mutex);
    s.stopping = true;
    s.changed.notify_all();
  }
  s.thread.join();
}

}  // namespace detail
}  // namespace tandem::comm
