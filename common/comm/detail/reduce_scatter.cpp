#include "common/comm/detail/reduce_scatter.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "common/comm/detail/checks.h"
#include "common/comm/detail/mpi_communicator.h"
#include "common/comm/detail/progress.h"
#include "common/comm/detail/sum.h"
#include "common/comm/detail/waiting.h"
#include "common/comm/detail/watchdog.h"
#include "common/comm/exchange_room.h"

namespace tandem::comm::detail {
namespace {

// Segments of each other rank that are received while one is added up: enough for the link's full rate; fewer with many
// ranks, whose staging adds up.
std::int64_t slotsFor(int ranks) { return std::clamp(32 / std::max(ranks - 1, 1), 3, 16); }

}  // namespace

ReduceScatterRequest::ReduceScatterRequest(const Channel& channel, const ConstBuffer& given, const Buffer& received,
                                           std::span<const std::int64_t> counts, WaitedSeconds waited)
    : channel_(channel), given_(given), received_(received), waited_(std::move(waited)) {
  checkMpi(MPI_Comm_rank(channel_.group, &rank_), "MPI_Comm_rank");
  checkMpi(MPI_Comm_size(channel_.group, &ranks_), "MPI_Comm_size");
  own_ = at(given_.data, sum(counts.first(static_cast<std::size_t>(rank_))), given_.type);
  perSegment_ = segmentBytes() / base::byteSize(given_.type);
  slots_ = slotsFor(ranks_);
  receives_.resize(static_cast<std::size_t>(slots_));
  segments_ = (received_.count + perSegment_ - 1) / perSegment_;
  staging_ = std::make_unique_for_overwrite<std::byte[]>(
      static_cast<std::size_t>(reduceScatterRoom(ranks_, received_.count * base::byteSize(given_.type))));
  for (std::int64_t segment = 0; segment < std::min(slots_, segments_); ++segment) postReceives(segment);
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

bool ReduceScatterRequest::test() {
  const LibraryLock lock;
  return complete_ || advance();
}

void ReduceScatterRequest::wait() {
  if (complete_) return;
  const CallScope scope("reduce-scatter", bytes(given_), *waited_);
  // The lock is free in between, for other exchanges under way.
  for (Waiting waiting; !test();) {
    if (std::exchange(goesOn_, false)) waiting = {};
    waiting.pause();
  }
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
  std::vector<MPI_Request>& requests = receives_[static_cast<std::size_t>(segment % slots_)];
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
  const std::int64_t index = (segment % slots_) * (ranks_ - 1) + (source < rank_ ? source : source - 1);
  return at(staging_.get(), index * perSegment_, given_.type);
}

bool ReduceScatterRequest::advance() {
  const auto arrived = [](std::vector<MPI_Request>& requests) {
    int done = 1;
    checkMpi(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE),
             "reduce-scatter");
    return done != 0;
  };
  for (; next_ < segments_; ++next_) {
    if (!arrived(receives_[static_cast<std::size_t>(next_ % slots_)])) return false;
    addUp(next_);
    goesOn_ = true;
    if (next_ + slots_ < segments_) postReceives(next_ + slots_);
  }
  staging_.reset();  // many exchanges may be finished long before the last of them is waited for
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

namespace tandem::comm {

std::int64_t reduceScatterRoom(int ranks, std::int64_t pieceBytes) {
  const std::int64_t segment = detail::segmentBytes();
  const std::int64_t segments = (pieceBytes + segment - 1) / segment;
  return std::min(detail::slotsFor(ranks), segments) * segment * (ranks - 1);
}

}  // namespace tandem::comm
