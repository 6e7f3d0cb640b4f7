#include "common/comm/detail/mpi_request.h"

#include <exception>
#include <thread>

#include "common/comm/detail/mpi_communicator.h"
#include "common/comm/detail/progress.h"
#include "common/comm/detail/watchdog.h"

namespace tandem::comm::detail {

MpiRequest::MpiRequest(const char* name, std::int64_t bytes, WaitedSeconds waited)
    : name_(name), bytes_(bytes), waited_(std::move(waited)) {}

MpiRequest::~MpiRequest() {
  if (complete_) return;
  if (std::uncaught_exceptions() > 0) {
    static_cast<void>(staging_.release());  // the library may still write into it
    return;
  }
  const LibraryLock lock;
  const CallScope scope(name_, bytes_, *waited_);
  MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE);
}

bool MpiRequest::test() {
  if (complete_) return true;
  const LibraryLock lock;
  int done = 0;
  checkMpi(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE), name_);
  if (done) complete();
  return complete_;
}

void MpiRequest::wait() {
  if (complete_) return;
  const CallScope scope(name_, bytes_, *waited_);
  while (!test()) std::this_thread::yield();  // the lock is free in between, for other exchanges under way
}

MPI_Request* MpiRequest::add() { return &requests_.emplace_back(MPI_REQUEST_NULL); }

float* MpiRequest::makeStaging(std::int64_t count) {
  staging_ = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(count));
  return staging_.get();
}

void MpiRequest::complete() {
  complete_ = true;
  if (finish_) finish_();
}

}  // namespace tandem::comm::detail
