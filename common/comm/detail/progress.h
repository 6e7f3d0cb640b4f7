#pragma once
// Lets exchanges go on while their caller computes. The library moves messages only inside its calls, and exchanges of
// several steps add up and pass on what has come only when they are asked for; a thread asks for them every millisecond
// while any is under way.
//
// The library is entered by one thread at a time (MPI_THREAD_SERIALIZED): whoever calls it, or touches a request that
// the thread may look after, holds a LibraryLock.

#include <exception>
#include <memory>
#include <mutex>

#include "common/comm/communicator.h"

namespace tandem::comm::detail {

class LibraryLock {
 public:
  LibraryLock();

 private:
  std::unique_lock<std::recursive_mutex> lock_;
};

// A request that goes on by itself while a ProgressThread lives.
class Attended final : public Request {
 public:
  explicit Attended(std::unique_ptr<Request> request);
  ~Attended() override;
  Attended(const Attended&) = delete;
  Attended& operator=(const Attended&) = delete;

  bool test() override;
  void wait() override;

  // Of the thread, which holds the lock: goes on as far as is possible. What fails is told to the next who asks.
  void attend();

 private:
  void reportFailure();

  std::unique_ptr<Request> request_;
  std::exception_ptr failure_;
};

// Runs from construction to destruction; one at a time.
class ProgressThread {
 public:
  ProgressThread();
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;
};

}  // namespace tandem::comm::detail
