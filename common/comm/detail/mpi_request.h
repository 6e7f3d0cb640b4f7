#pragma once
// Several MPI requests that complete together.

#include <mpi.h>

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "common/comm/communicator.h"

namespace tandem::comm::detail {

using WaitedSeconds = std::shared_ptr<std::atomic<double>>;

// What tells the messages of one operation from all others between two ranks.
struct Channel {
  MPI_Comm group = MPI_COMM_NULL;
  int tag = 0;
};

class MpiRequest : public Request {
 public:
  // The name and the bytes are for the watchdog.
  MpiRequest(const char* name, std::int64_t bytes, WaitedSeconds waited);
  // Waits, since the library still uses the buffers; not while an exception passes, when the ranks no longer agree.
  ~MpiRequest() override;
  MpiRequest(const MpiRequest&) = delete;
  MpiRequest& operator=(const MpiRequest&) = delete;

  bool test() override;
  void wait() override;

  // A slot for MPI to fill.
  MPI_Request* add();
  // A float32 copy that lives as long as the requests do.
  float* makeStaging(std::int64_t count);
  // Called once when all is complete.
  void whenComplete(std::function<void()> finish) { finish_ = std::move(finish); }

 private:
  void complete();

  const char* name_;
  std::int64_t bytes_;
  WaitedSeconds waited_;
  std::vector<MPI_Request> requests_;
  std::vector<int> indexes_;  // of those that a question finds complete
  std::size_t completed_ = 0;
  std::unique_ptr<float[]> staging_;
  std::function<void()> finish_;
  bool goesOn_ = false;  // some were completed when it was asked last
  bool complete_ = false;
};

}  // namespace tandem::comm::detail
