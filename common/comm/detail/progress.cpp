#include "common/comm/detail/progress.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <thread>
#include <utility>
#include <vector>

namespace tandem::comm::detail {
namespace {

// Much less than a link needs to empty the buffers that the system has for it, much more than a look takes.
constexpr std::chrono::microseconds interval(1000);

struct State {
  std::recursive_mutex library;
  std::vector<Attended*> underWay;  // guarded by `library`

  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  bool anyUnderWay = false;
  bool stopping = false;
  std::thread thread;
};

State& state() {
  static State instance;
  return instance;
}

// The lock on the library is held.
void noteWhetherAny() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.anyUnderWay = !s.underWay.empty();
  s.changed.notify_one();
}

void leave(Attended* request) {
  std::vector<Attended*>& underWay = state().underWay;
  if (std::erase(underWay, request) > 0 && underWay.empty()) noteWhetherAny();
}

void lookAfterAll() {
  State& s = state();
  // Whoever holds it makes the library go on.
  const std::unique_lock lock(s.library, std::try_to_lock);
  if (!lock) return;
  // By index: what goes on may start and end exchanges that it consists of.
  for (std::size_t i = 0; i < s.underWay.size(); ++i) s.underWay[i]->attend();
}

void run() {
  State& s = state();
  std::unique_lock lock(s.mutex);
  for (;;) {
    s.changed.wait(lock, [&] { return s.stopping || s.anyUnderWay; });
    if (s.stopping) return;
    lock.unlock();
    lookAfterAll();
    lock.lock();
    s.changed.wait_for(lock, interval, [&] { return s.stopping; });
  }
}

}  // namespace

LibraryLock::LibraryLock() : lock_(state().library) {}

Attended::Attended(std::unique_ptr<Request> request) : request_(std::move(request)) {
  const LibraryLock lock;
  if (request_->test()) return;
  state().underWay.push_back(this);
  if (state().underWay.size() == 1) noteWhetherAny();
}

Attended::~Attended() {
  const LibraryLock lock;
  leave(this);
  request_.reset();
}

bool Attended::test() {
  const LibraryLock lock;
  reportFailure();
  const bool complete = request_->test();
  if (complete) leave(this);
  return complete;
}

void Attended::wait() {
  {
    const LibraryLock lock;
    reportFailure();
    leave(this);
  }
  request_->wait();
}

void Attended::attend() {
  try {
    if (!request_->test()) return;
  } catch (...) {
    failure_ = std::current_exception();
  }
  leave(this);
}

void Attended::reportFailure() {
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

ProgressThread::ProgressThread() {
  State& s = state();
  s.stopping = false;
  sigset_t all, before;  // signals are for the main thread
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  s.thread = std::thread(&run);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

ProgressThread::~ProgressThread() {
  State& s = state();
  {
    const std::lock_guard lock(s.mutex);
    s.stopping = true;
    s.changed.notify_one();
  }
  s.thread.join();
}

}  // namespace tandem::comm::detail
