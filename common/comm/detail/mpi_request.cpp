#include "common/comm/detail/mpi_request.h"

#include <exception>

#include "common/comm/detail/mpi_communicator.h"
#include "common/comm/detail/progress.h"
#include "common/comm/detail/waiting.h"
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
  indexes_.resize(requests_.size());
  checkMpi(MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &done, indexes_.data(), MPI_STATUSES_IGNORE),
           name_);
  goesOn_ = done > 0;
  if (goesOn_) completed_ += static_cast<std::size_t>(done);
  if (done == MPI_UNDEFINED || completed_ == requests_.size()) complete();
  return complete_;
}

void MpiRequest::wait() {
  if (complete_) return;
  const CallScope scope(name_, bytes_, *waited_);
  // The lock is free in between, for other exchanges under way.
  for (Waiting waiting; !test();) {
    if (goesOn_) waiting = {};
    waiting.pause();
  }
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
