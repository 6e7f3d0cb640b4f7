#pragma once
// A reduce-scatter by direct exchange: every rank sends each other rank its contribution to that rank's piece, and adds
// up what it receives for its own, segment by segment, in the order of the ranks.
//
// So every element crosses the link once, sums have the same bits however the calls are timed or cut, 16-bit floats are
// added in float32 and rounded once, and the memory needed is a few segments. (MPI's own non-blocking form reduces
// everything to one rank and scatters from there.)

#include <mpi.h>

#include <memory>
#include <vector>

#include "common/comm/communicator.h"
#include "common/comm/detail/mpi_request.h"

namespace tandem::comm::detail {

class ReduceScatterRequest : public Request {
 public:
  // The channel must not be used for anything else while this is under way.
  ReduceScatterRequest(const Channel& channel, const ConstBuffer& given, const Buffer& received,
                       std::span<const std::int64_t> counts, WaitedSeconds waited);
  ~ReduceScatterRequest() override;
  ReduceScatterRequest(const ReduceScatterRequest&) = delete;
  ReduceScatterRequest& operator=(const ReduceScatterRequest&) = delete;

  bool test() override;
  void wait() override;

 private:
  void postSends(std::span<const std::int64_t> counts);
  void postReceives(std::int64_t segment);
  std::int64_t segmentCount(std::int64_t segment) const;
  std::byte* staging(std::int64_t segment, int source);
  // Adds up the segments that have arrived; true when all are done.
  bool advance();
  void addUp(std::int64_t segment);

  Channel channel_;
  ConstBuffer given_;
  const std::byte* own_ = nullptr;  // this rank's contribution to its own piece
  Buffer received_;
  int rank_ = 0;
  int ranks_ = 0;
  std::int64_t perSegment_ = 0;  // elements
  std::int64_t segments_ = 0;
  std::int64_t slots_ = 0;  // segments under way
  std::int64_t next_ = 0;   // the first segment that is not added up yet
  std::unique_ptr<std::byte[]> staging_;
  std::vector<std::vector<MPI_Request>> receives_;  // by slot
  std::vector<MPI_Request> sends_;
  WaitedSeconds waited_;
  bool goesOn_ = false;  // a segment was added up since it was looked at last
  bool complete_ = false;
};

}  // namespace tandem::comm::detail
