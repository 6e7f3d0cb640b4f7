#include "common/comm/detail/reduce_scatter.h"

#include <algorithm>
#include <exception>

#include "common/comm/detail/checks.h"
#include "common/comm/detail/mpi_communicator.h"
#include "common/comm/detail/sum.h"
#include "common/comm/detail/watchdog.h"

namespace tandem::comm::detail {
namespace {

// Long enough for the link's full rate; shorter with many ranks, whose staging adds up. Alike on all ranks.
std::int64_t segmentBytes(int ranks) {
  const std::int64_t shared = (std::int64_t{16} << 20) / ranks;
  const std::int64_t bytes = std::clamp<std::int64_t>(shared, 64 << 10, 1 << 20) & ~std::int64_t{7};
  return std::min(bytes, pieceBytes());
}

}  // namespace

ReduceScatterRequest::ReduceScatterRequest(const Channel& channel, const ConstBuffer& given, const Buffer& received,
                                           std::span<const std::int64_t> counts, WaitedSeconds waited)
    : channel_(channel), given_(given), received_(received), waited_(std::move(waited)) {
  checkMpi(MPI_Comm_rank(channel_.group, &rank_), "MPI_Comm_rank");
  checkMpi(MPI_Comm_size(channel_.group, &ranks_), "MPI_Comm_size");
  own_ = at(given_.data, sum(counts.first(static_cast<std::size_t>(rank_))), given_.type);
  perSegment_ = segmentBytes(ranks_) / base::byteSize(given_.type);
  segments_ = (received_.count + perSegment_ - 1) / perSegment_;
  const std::int64_t stagedElements = std::min(slots * perSegment_, segments_ * perSegment_) * (ranks_ - 1);
  staging_ = std::make_unique_for_overwrite<std::byte[]>(
      static_cast<std::size_t>(stagedElements * base::byteSize(given_.type)));
  for (std::int64_t segment = 0; segment < std::min(slots, segments_); ++segment) postReceives(segment);
  postSends(counts);
}

ReduceScatterRequest::~ReduceScatterRequest() {
  if (complete_) return;
  if (std::uncaught_exceptions() > 0) {
    static_cast<void>(staging_.release());  // the library may still write into it
    return;
  }
  try {
    wait();
  } catch (const base::Error&) {  // the next call on the group reports it
  }
}

bool ReduceScatterRequest::test() { return complete_ || advance(false); }

void ReduceScatterRequest::wait() {
  if (complete_) return;
  const CallScope scope("reduce-scatter", bytes(given_), *waited_);
  advance(true);
}

void ReduceScatterRequest::postSends(std::span<const std::int64_t> counts) {
  std::int64_t pieceBegin = 0;
  for (int destination = 0; destination < ranks_; ++destination) {
    const std::int64_t count = counts[static_cast<std::size_t>(destination)];
    for (std::int64_t begin = 0; begin < count && destination != rank_; begin += perSegment_) {
      const std::int64_t size = std::min(perSegment_, count - begin) * base::byteSize(given_.type);
      checkMpi(MPI_Isend(at(given_.data, pieceBegin + begin, given_.type), static_cast<int>(size), MPI_BYTE,
                         destination, channel_.tag, channel_.group, &sends_.emplace_back(MPI_REQUEST_NULL)),
               "MPI_Isend");
    }
    pieceBegin += count;
  }
}

void ReduceScatterRequest::postReceives(std::int64_t segment) {
  std::vector<MPI_Request>& requests = receives_[segment % slots];
  requests.clear();
  const std::int64_t size = segmentCount(segment) * base::byteSize(given_.type);
  for (int source = 0; source < ranks_; ++source) {
    if (source == rank_) continue;
    checkMpi(MPI_Irecv(staging(segment, source), static_cast<int>(size), MPI_BYTE, source, channel_.tag, channel_.group,
                       &requests.emplace_back(MPI_REQUEST_NULL)),
             "MPI_Irecv");
  }
}

std::int64_t ReduceScatterRequest::segmentCount(std::int64_t segment) const {
  return std::min(perSegment_, received_.count - segment * perSegment_);
}

std::byte* ReduceScatterRequest::staging(std::int64_t segment, int source) {
  const std::int64_t index = (segment % slots) * (ranks_ - 1) + (source < rank_ ? source : source - 1);
  return at(staging_.get(), index * perSegment_, given_.type);
}

bool ReduceScatterRequest::advance(bool waiting) {
  auto arrived = [waiting](std::vector<MPI_Request>& requests) {
    int done = 1;
    const int count = static_cast<int>(requests.size());
    if (waiting) {
      checkMpi(MPI_Waitall(count, requests.data(), MPI_STATUSES_IGNORE), "reduce-scatter");
    } else {
      checkMpi(MPI_Testall(count, requests.data(), &done, MPI_STATUSES_IGNORE), "reduce-scatter");
    }
    return done != 0;
  };
  for (; next_ < segments_; ++next_) {
    if (!arrived(receives_[next_ % slots])) return false;
    addUp(next_);
    if (next_ + slots < segments_) postReceives(next_ + slots);
  }
  if (!arrived(sends_)) return false;
  return complete_ = true;
}

void ReduceScatterRequest::addUp(std::int64_t segment) {
  const std::int64_t begin = segment * perSegment_;
  std::vector<const void*> contributions;
  for (int source = 0; source < ranks_; ++source) {
    contributions.push_back(source == rank_ ? at(static_cast<const void*>(own_), begin, given_.type)
                                            : staging(segment, source));
  }
  detail::addUp(contributions, given_.type, segmentCount(segment), at(received_.data, begin, received_.type));
}

}  // namespace tandem::comm::detail
