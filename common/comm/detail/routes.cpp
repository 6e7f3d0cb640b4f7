#include "common/comm/detail/routes.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>

#include "common/comm/detail/checks.h"
#include "common/comm/detail/float16.h"
#include "common/comm/detail/mpi_communicator.h"
#include "common/comm/detail/sum.h"

namespace tandem::comm::detail {
namespace {

using base::DType;
using Requests = std::vector<std::unique_ptr<Request>>;

constexpr std::size_t ahead = 16;  // segments that are received while one is added up

struct Segment {
  std::int64_t begin = 0;  // element of the whole
  std::int64_t count = 0;
};

// Where the ranks' pieces lie in the whole.
class Pieces {
 public:
  explicit Pieces(const std::vector<std::int64_t>& counts) {
    for (const std::int64_t count : counts) begins_.push_back(begins_.back() + count);
  }
  std::int64_t begin(int piece) const { return begins_[static_cast<std::size_t>(piece)]; }
  // The segments of pieces [first, last).
  std::vector<Segment> segments(int first, int last, DType type) const {
    std::vector<Segment> result;
    const std::int64_t step = segmentElements(type);
    for (std::int64_t at = begin(first); at < begin(last); at += step) {
      result.push_back({at, std::min(step, begin(last) - at)});
    }
    return result;
  }

 private:
  std::vector<std::int64_t> begins_ = {0};
};

// Places of a segment each, used in turn.
class Slots {
 public:
  explicit Slots(DType type) : type_(type), bytes_(ahead * static_cast<std::size_t>(segmentBytes())) {}
  Buffer buffer(std::size_t index, std::int64_t count) {
    return {bytes_.data() + index % ahead * static_cast<std::size_t>(segmentBytes()), type_, count};
  }

 private:
  DType type_;
  std::vector<std::byte> bytes_;
};

// Receives a run of segments from one rank, a few ahead of the one that is asked for.
class Incoming {
 public:
  Incoming(Communicator& group, int source, int tag, DType wire, std::vector<Segment> segments)
      : group_(group), source_(source), tag_(tag), segments_(std::move(segments)), slots_(wire) {
    for (std::size_t index = 0; index < ahead; ++index) post(index);
  }
  const std::vector<Segment>& segments() const { return segments_; }
  Request& arrival(std::size_t index) { return *receives_[index % ahead]; }
  Buffer content(std::size_t index) { return slots_.buffer(index, segments_[index].count); }
  // The content of a segment is no longer needed.
  void release(std::size_t index) { post(index + ahead); }

 private:
  void post(std::size_t index) {
    if (index >= segments_.size()) return;
    receives_[index % ahead] = group_.startReceive(content(index), source_, tag_);
  }

  Communicator& group_;
  int source_;
  int tag_;
  std::vector<Segment> segments_;
  Slots slots_;
  std::array<std::unique_ptr<Request>, ahead> receives_;
};

// What travels for elements of a type.
DType wireType(const Way& way, DType type) { return way.bf16OnWire && type == DType::f32 ? DType::bf16 : type; }

// own + arrived, as elements of `own`.
void addArrived(const ConstBuffer& own, const ConstBuffer& arrived, const Buffer& sum) {
  if (arrived.type == own.type && sum.type == own.type) {
    addUp(std::array<const void*, 2>{own.data, arrived.data}, own.type, own.count, sum.data);
    return;
  }
  constexpr std::int64_t block = 1024;
  float values[block];
  for (std::int64_t begin = 0; begin < own.count; begin += block) {
    const std::int64_t length = std::min(block, own.count - begin);
    const float* const mine = static_cast<const float*>(own.data) + begin;
    widen(at(arrived.data, begin, arrived.type), arrived.type, length, values);
    for (std::int64_t i = 0; i < length; ++i) values[i] += mine[i];
    if (sum.type == DType::f32) {
      std::copy_n(values, length, static_cast<float*>(sum.data) + begin);
    } else {
      narrow(values, length, sum.type, at(sum.data, begin, sum.type));
    }
  }
}

ConstBuffer part(const ConstBuffer& whole, std::int64_t wholeBegin, const Segment& segment) {
  return {at(whole.data, segment.begin - wholeBegin, whole.type), whole.type, segment.count};
}
Buffer part(const Buffer& whole, std::int64_t wholeBegin, const Segment& segment) {
  return {at(whole.data, segment.begin - wholeBegin, whole.type), whole.type, segment.count};
}

// Sends segments to one rank, rounded where that is asked for. A copy lives until its message has gone; nobody waits
// for that before the end, since the receiver may have to send first.
class Outgoing {
 public:
  Outgoing(const Way& way, int destination, DType type)
      : group_(way.group), destination_(destination), tag_(way.tag), wire_(wireType(way, type)) {}

  // The buffer must stay until all has gone.
  void send(const ConstBuffer& buffer) {
    if (buffer.type == wire_) return start({}, buffer);
    std::vector<std::byte> copy(static_cast<std::size_t>(buffer.count * base::byteSize(wire_)));
    narrow(static_cast<const float*>(buffer.data), buffer.count, wire_, copy.data());
    start(std::move(copy), buffer);
  }
  void sendSum(const ConstBuffer& own, const ConstBuffer& arrived) {
    std::vector<std::byte> sum(static_cast<std::size_t>(own.count * base::byteSize(wire_)));
    addArrived(own, arrived, {sum.data(), wire_, own.count});
    start(std::move(sum), own);
  }
  // The messages that may not have gone yet, first to last.
  bool empty() const { return messages_.empty(); }
  Request& first() { return *messages_.front().request; }
  void dropFirst() { messages_.pop_front(); }

 private:
  struct Message {
    std::vector<std::byte> copy;  // empty where the buffer itself is sent
    std::unique_ptr<Request> request;
  };

  void start(std::vector<std::byte> copy, const ConstBuffer& buffer) {
    while (!empty() && first().test()) dropFirst();
    Message& message = messages_.emplace_back(std::move(copy));
    const void* const data = message.copy.empty() ? buffer.data : message.copy.data();
    message.request = group_.startSend({data, wire_, buffer.count}, destination_, tag_);
  }

  Communicator& group_;
  int destination_;
  int tag_;
  DType wire_;
  std::deque<Message> messages_;
};

void copyOwn(const ConstBuffer& own, const Buffer& all, std::int64_t begin) {
  void* const place = at(all.data, begin, all.type);
  if (own.count > 0 && place != own.data) std::memmove(place, own.data, static_cast<std::size_t>(bytes(own)));
}

}  // namespace

std::int64_t segmentElements(DType type) { return segmentBytes() / base::byteSize(type); }

// The sum of a piece begins at the rank behind its owner's and goes round to the owner, each rank adding its own.
Exchange ringReduceScatter(Way way, ConstBuffer given, Buffer received, std::vector<std::int64_t> counts) {
  const int ranks = way.group.size(), rank = way.group.rank();
  const int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
  const Pieces pieces(counts);
  const DType wire = wireType(way, given.type);
  const auto segmentsOf = [&](int piece) { return pieces.segments(piece, piece + 1, given.type); };

  std::vector<Segment> coming;
  for (int step = 0; step + 1 < ranks; ++step) {
    const std::vector<Segment> more = segmentsOf((rank - step - 2 + 2 * ranks) % ranks);
    coming.insert(coming.end(), more.begin(), more.end());
  }
  const std::size_t toForward = coming.size() - segmentsOf(rank).size();
  Incoming incoming(way.group, previous, way.tag, wire, std::move(coming));
  Outgoing outgoing(way, next, given.type);
  for (const Segment& segment : segmentsOf(previous)) outgoing.send(part(given, 0, segment));

  for (std::size_t index = 0; index < incoming.segments().size(); ++index) {
    const Segment segment = incoming.segments()[index];
    co_await incoming.arrival(index);
    const ConstBuffer own = part(given, 0, segment);
    if (index < toForward) {
      outgoing.sendSum(own, incoming.content(index));
    } else {
      addArrived(own, incoming.content(index), part(received, pieces.begin(rank), segment));
    }
    incoming.release(index);
  }
  for (; !outgoing.empty(); outgoing.dropFirst()) co_await outgoing.first();
}

Exchange ringAllGather(Way way, ConstBuffer given, Buffer received, std::vector<std::int64_t> counts) {
  const int ranks = way.group.size(), rank = way.group.rank();
  const int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
  const Pieces pieces(counts);
  const auto segmentsOf = [&](int piece) { return pieces.segments(piece, piece + 1, given.type); };

  std::vector<Segment> coming;
  for (int step = 0; step + 1 < ranks; ++step) {
    const std::vector<Segment> more = segmentsOf((rank - step - 1 + ranks) % ranks);
    coming.insert(coming.end(), more.begin(), more.end());
  }
  // What comes last is of the next rank, which has it.
  const std::size_t toForward = coming.size() - segmentsOf(next).size();
  Requests receives, sends;
  for (const Segment& segment : coming) {
    receives.push_back(way.group.startReceive(part(received, 0, segment), previous, way.tag));
  }
  for (const Segment& segment : segmentsOf(rank)) {
    sends.push_back(way.group.startSend(part(given, pieces.begin(rank), segment), next, way.tag));
  }
  copyOwn(given, received, pieces.begin(rank));
  for (std::size_t index = 0; index < coming.size(); ++index) {
    co_await *receives[index];
    if (index >= toForward) continue;
    sends.push_back(way.group.startSend(part(received, 0, coming[index]), next, way.tag));
  }
  for (auto& send : sends) co_await *send;
}

// Of the pieces that a rank still adds up for, it keeps the half with its own and gives the other half away.
Exchange halvingReduceScatter(Way way, ConstBuffer given, Buffer received, std::vector<std::int64_t> counts) {
  const int ranks = way.group.size(), rank = way.group.rank();
  const Pieces pieces(counts);
  const int firstKept = rank & ~(ranks / 2 - 1);
  const std::int64_t workBegin = pieces.begin(firstKept);
  std::vector<std::byte> work(
      static_cast<std::size_t>((pieces.begin(firstKept + ranks / 2) - workBegin) * base::byteSize(given.type)));
  const Buffer sums{work.data(), given.type, 0};

  std::deque<Outgoing> sent;
  for (int distance = ranks / 2; distance >= 1; distance /= 2) {
    const int partner = rank ^ distance;
    const int kept = rank & ~(distance - 1), away = kept ^ distance;
    const bool first = distance == ranks / 2, last = distance == 1;
    const ConstBuffer current = first ? given : ConstBuffer(sums);
    const std::int64_t currentBegin = first ? 0 : workBegin;
    Incoming incoming(way.group, partner, way.tag, wireType(way, given.type),
                      pieces.segments(kept, kept + distance, given.type));
    Outgoing& outgoing = sent.emplace_back(way, partner, given.type);
    for (const Segment& segment : pieces.segments(away, away + distance, given.type)) {
      outgoing.send(part(current, currentBegin, segment));
    }
    for (std::size_t index = 0; index < incoming.segments().size(); ++index) {
      const Segment segment = incoming.segments()[index];
      co_await incoming.arrival(index);
      const Buffer target = last ? part(received, pieces.begin(rank), segment) : part(sums, workBegin, segment);
      addArrived(part(current, currentBegin, segment), incoming.content(index), target);
      incoming.release(index);
    }
  }
  for (Outgoing& outgoing : sent) {
    for (; !outgoing.empty(); outgoing.dropFirst()) co_await outgoing.first();
  }
}

// What a rank has gathered it exchanges with a rank at twice the distance each time.
Exchange doublingAllGather(Way way, ConstBuffer given, Buffer received, std::vector<std::int64_t> counts) {
  const int ranks = way.group.size(), rank = way.group.rank();
  const Pieces pieces(counts);
  copyOwn(given, received, pieces.begin(rank));
  Requests sends;
  for (int distance = 1; distance < ranks; distance *= 2) {
    const int partner = rank ^ distance;
    const int held = rank & ~(distance - 1), theirs = held ^ distance;
    Requests receives;
    for (const Segment& segment : pieces.segments(theirs, theirs + distance, given.type)) {
      receives.push_back(way.group.startReceive(part(received, 0, segment), partner, way.tag));
    }
    for (const Segment& segment : pieces.segments(held, held + distance, given.type)) {
      sends.push_back(way.group.startSend(part(ConstBuffer(received), 0, segment), partner, way.tag));
    }
    for (auto& receive : receives) co_await *receive;
  }
  for (auto& send : sends) co_await *send;
}

}  // namespace tandem::comm::detail
