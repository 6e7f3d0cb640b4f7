#include "common/comm/detail/mpi_communicator.h"

#include <algorithm>
#include <cstring>

#include "common/comm/detail/checks.h"
#include "common/comm/detail/float16.h"
#include "common/comm/detail/mpi_request.h"
#include "common/comm/detail/progress.h"
#include "common/comm/detail/reduce_scatter.h"
#include "common/comm/detail/watchdog.h"
#include "common/comm/session.h"

namespace tandem::comm::detail {
namespace {

using base::DType;

constexpr int largestTag = 32767;  // that MPI promises
std::int64_t pieceLimit = std::int64_t{256} << 20;

// How a type travels. The 16-bit floats are never reduced as such.
MPI_Datatype mpiType(DType type) {
  switch (type) {
    case DType::f64:
      return MPI_DOUBLE;
    case DType::f32:
      return MPI_FLOAT;
    case DType::i64:
      return MPI_INT64_T;
    case DType::i32:
      return MPI_INT32_T;
    case DType::u64:
      return MPI_UINT64_T;
    case DType::u32:
      return MPI_UINT32_T;
    case DType::bf16:
    case DType::f16:
    case DType::u16:
      return MPI_UINT16_T;
    case DType::u8:
      return MPI_UINT8_T;
    case DType::i8:
      return MPI_INT8_T;
  }
  return MPI_DATATYPE_NULL;
}

MPI_Op mpiOperation(Reduction reduction) {
  switch (reduction) {
    case Reduction::sum:
      return MPI_SUM;
    case Reduction::maximum:
      return MPI_MAX;
    case Reduction::minimum:
      return MPI_MIN;
  }
  return MPI_OP_NULL;
}

// Calls visit(first element, elements) for each piece of a run of elements.
template <class Visit>
void forEachPiece(std::int64_t count, DType type, Visit&& visit, std::int64_t longest = pieceLimit) {
  const std::int64_t step = longest / base::byteSize(type);
  for (std::int64_t begin = 0; begin < count; begin += step) {
    visit(begin, static_cast<int>(std::min(step, count - begin)));
  }
}

class MpiCommunicator : public Communicator {
 public:
  // Takes over the handle.
  MpiCommunicator(MPI_Comm handle, WaitedSeconds waited) : handle_(handle), waited_(std::move(waited)) {
    const LibraryLock lock;
    checkMpi(MPI_Comm_rank(handle_, &rank_), "MPI_Comm_rank");
    checkMpi(MPI_Comm_size(handle_, &size_), "MPI_Comm_size");
    checkMpi(MPI_Comm_dup(handle_, &exchanges_), "MPI_Comm_dup");
    MPI_Comm host = MPI_COMM_NULL;
    checkMpi(MPI_Comm_split_type(handle_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &host), "MPI_Comm_split_type");
    checkMpi(MPI_Comm_size(host, &ranksOnThisHost_), "MPI_Comm_size");
    checkMpi(MPI_Comm_free(&host), "MPI_Comm_free");
  }

  ~MpiCommunicator() override {
    if (std::uncaught_exceptions() > 0) return;  // freeing is collective: not when the ranks may disagree
    const LibraryLock lock;
    MPI_Comm_free(&exchanges_);
    MPI_Comm_free(&handle_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int ranksOnThisHost() const override { return ranksOnThisHost_; }
  std::string description() const override { return "MPI (" + libraryVersion() + ")"; }

  void barrier() override {
    const LibraryLock lock;
    const CallScope scope("barrier", 0, *waited_);
    checkMpi(MPI_Barrier(handle_), "MPI_Barrier");
  }

  void broadcast(Buffer buffer, int root) override {
    checkRank(root);
    const LibraryLock lock;
    const CallScope scope("broadcast", bytes(buffer), *waited_);
    forEachPiece(buffer.count, buffer.type, [&](std::int64_t begin, int count) {
      checkMpi(MPI_Bcast(at(buffer.data, begin, buffer.type), count, mpiType(buffer.type), root, handle_), "MPI_Bcast");
    });
  }

  void allReduce(Buffer buffer, Reduction reduction) override {
    const CallScope scope("all-reduce", bytes(buffer), *waited_);
    if (isFloat16(buffer.type)) return startAllReduce(buffer, reduction)->wait();
    const LibraryLock lock;
    forEachPiece(buffer.count, buffer.type, [&](std::int64_t begin, int count) {
      checkMpi(MPI_Allreduce(MPI_IN_PLACE, at(buffer.data, begin, buffer.type), count, mpiType(buffer.type),
                             mpiOperation(reduction), handle_),
               "MPI_Allreduce");
    });
  }

  void reduceScatter(ConstBuffer given, Buffer received, std::span<const std::int64_t> counts) override {
    const CallScope scope("reduce-scatter", bytes(given), *waited_);
    startReduceScatter(given, received, counts)->wait();
  }

  void allGather(ConstBuffer given, Buffer received, std::span<const std::int64_t> counts) override {
    const CallScope scope("all-gather", bytes(received), *waited_);
    startAllGather(given, received, counts)->wait();
  }

  void allToAll(ConstBuffer given, std::span<const std::int64_t> givenCounts, Buffer received,
                std::span<const std::int64_t> receivedCounts) override {
    TANDEM_ASSERT(std::ssize(givenCounts) == size_ && std::ssize(receivedCounts) == size_,
                  "an all-to-all needs one count for each rank");
    TANDEM_ASSERT(
        given.type == received.type && given.count == sum(givenCounts) && received.count == sum(receivedCounts),
        "the buffers of an all-to-all must be as long as their counts say");
    const CallScope scope("all-to-all", bytes(given), *waited_);
    MpiRequest request("all-to-all", bytes(given), waited_);
    postAllToAll(request, given, givenCounts, received, receivedCounts);
    request.wait();
  }

  void send(ConstBuffer buffer, int destination, int tag) override {
    const CallScope scope("send", bytes(buffer), *waited_);
    startSend(buffer, destination, tag)->wait();
  }

  void receive(Buffer buffer, int source, int tag) override {
    const CallScope scope("receive", bytes(buffer), *waited_);
    startReceive(buffer, source, tag)->wait();
  }

  std::unique_ptr<Request> startAllReduce(Buffer buffer, Reduction reduction) override {
    const LibraryLock lock;
    auto request = std::make_unique<MpiRequest>("all-reduce", bytes(buffer), waited_);
    Buffer work = buffer;
    if (isFloat16(buffer.type)) {
      work = {request->makeStaging(buffer.count), DType::f32, buffer.count};
      float* const staging = static_cast<float*>(work.data);
      widen(buffer.data, buffer.type, buffer.count, staging);
      request->whenComplete([buffer, staging] { narrow(staging, buffer.count, buffer.type, buffer.data); });
    }
    forEachPiece(work.count, work.type, [&](std::int64_t begin, int count) {
      checkMpi(MPI_Iallreduce(MPI_IN_PLACE, at(work.data, begin, work.type), count, mpiType(work.type),
                              mpiOperation(reduction), handle_, request->add()),
               "MPI_Iallreduce");
    });
    return attended(std::move(request));
  }

  std::unique_ptr<Request> startReduceScatter(ConstBuffer given, Buffer received,
                                              std::span<const std::int64_t> counts) override {
    checkPieces(*this, given, received, counts);
    const LibraryLock lock;
    return attended(std::make_unique<ReduceScatterRequest>(nextExchange(), given, received, counts, waited_));
  }

  std::unique_ptr<Request> startAllGather(ConstBuffer given, Buffer received,
                                          std::span<const std::int64_t> counts) override {
    checkPieces(*this, received, given, counts);
    const LibraryLock lock;
    auto request = std::make_unique<MpiRequest>("all-gather", bytes(received), waited_);
    const Channel channel = nextExchange();
    std::int64_t begin = 0;
    for (int source = 0; source < size_; ++source) {
      const std::int64_t count = counts[static_cast<std::size_t>(source)];
      if (source != rank_)
        addReceive(*request, {at(received.data, begin, received.type), received.type, count}, source, channel,
                   segmentBytes());
      begin += count;
    }
    for (int step = 1; step < size_; ++step) addSend(*request, given, (rank_ + step) % size_, channel, segmentBytes());
    copyOwn(given, received, counts);
    return attended(std::move(request));
  }

  std::unique_ptr<Request> startSend(ConstBuffer buffer, int destination, int tag) override {
    checkMessage(destination, tag);
    const LibraryLock lock;
    auto request = std::make_unique<MpiRequest>("send", bytes(buffer), waited_);
    addSend(*request, buffer, destination, {handle_, tag});
    return request;
  }

  std::unique_ptr<Request> startReceive(Buffer buffer, int source, int tag) override {
    checkMessage(source, tag);
    const LibraryLock lock;
    auto request = std::make_unique<MpiRequest>("receive", bytes(buffer), waited_);
    addReceive(*request, buffer, source, {handle_, tag});
    return request;
  }

  std::unique_ptr<Communicator> split(int colour, int key) override {
    TANDEM_ASSERT(colour >= 0, "the colour of a split is negative");
    const LibraryLock lock;
    const CallScope scope("split", 0, *waited_);
    MPI_Comm part = MPI_COMM_NULL;
    checkMpi(MPI_Comm_split(handle_, colour, key, &part), "MPI_Comm_split");
    return std::make_unique<MpiCommunicator>(part, waited_);
  }

  double secondsWaited() const override { return *waited_; }

 private:
  static std::unique_ptr<Request> attended(std::unique_ptr<Request> request) {
    return std::make_unique<Attended>(std::move(request));
  }

  void postAllToAll(MpiRequest& request, ConstBuffer given, std::span<const std::int64_t> givenCounts, Buffer received,
                    std::span<const std::int64_t> receivedCounts) {
    const LibraryLock lock;
    const Channel channel = nextExchange();
    std::int64_t begin = 0;
    for (int source = 0; source < size_; ++source) {
      const std::int64_t count = receivedCounts[static_cast<std::size_t>(source)];
      if (source != rank_)
        addReceive(request, {at(received.data, begin, received.type), received.type, count}, source, channel,
                   segmentBytes());
      begin += count;
    }
    begin = 0;
    for (int destination = 0; destination < size_; ++destination) {
      const std::int64_t count = givenCounts[static_cast<std::size_t>(destination)];
      if (destination == rank_) {
        TANDEM_ASSERT(count == receivedCounts[static_cast<std::size_t>(rank_)], "a rank gives itself what it receives");
        copyOwn({at(given.data, begin, given.type), given.type, count}, received, receivedCounts);
      } else {
        addSend(request, {at(given.data, begin, given.type), given.type, count}, destination, channel, segmentBytes());
      }
      begin += count;
    }
  }

  void checkRank(int rank) const { TANDEM_ASSERT(rank >= 0 && rank < size_, "the rank is outside the group"); }
  void checkMessage(int rank, int tag) const {
    checkRank(rank);
    TANDEM_ASSERT(tag >= 0 && tag < largestTag, "the tag is out of range");
  }

  void addSend(MpiRequest& request, const ConstBuffer& buffer, int destination, const Channel& channel,
               std::int64_t longest = pieceLimit) {
    const auto send = [&](std::int64_t begin, int count) {
      checkMpi(MPI_Isend(at(buffer.data, begin, buffer.type), count, mpiType(buffer.type), destination, channel.tag,
                         channel.group, request.add()),
               "MPI_Isend");
    };
    forEachPiece(buffer.count, buffer.type, send, longest);
  }

  void addReceive(MpiRequest& request, const Buffer& buffer, int source, const Channel& channel,
                  std::int64_t longest = pieceLimit) {
    const auto receive = [&](std::int64_t begin, int count) {
      checkMpi(MPI_Irecv(at(buffer.data, begin, buffer.type), count, mpiType(buffer.type), source, channel.tag,
                         channel.group, request.add()),
               "MPI_Irecv");
    };
    forEachPiece(buffer.count, buffer.type, receive, longest);
  }

  // Of an exchange between all ranks, which start exchanges in the same order: so several can be under way at once.
  Channel nextExchange() {
    nextTag_ = (nextTag_ + 1) % largestTag;
    return {exchanges_, nextTag_};
  }

  // Puts this rank's own piece into its place among all.
  void copyOwn(const ConstBuffer& own, const Buffer& all, std::span<const std::int64_t> counts) const {
    void* const place = at(all.data, sum(counts.first(static_cast<std::size_t>(rank_))), all.type);
    if (own.count > 0 && place != own.data) std::memmove(place, own.data, static_cast<std::size_t>(bytes(own)));
  }

  MPI_Comm handle_;
  MPI_Comm exchanges_ = MPI_COMM_NULL;  // the same ranks; carries the messages that collectives are made of
  int nextTag_ = 0;
  WaitedSeconds waited_;
  int rank_ = 0;
  int size_ = 0;
  int ranksOnThisHost_ = 1;
};

}  // namespace

std::unique_ptr<Communicator> makeMpiWorld() {
  checkMpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  MPI_Comm own = MPI_COMM_NULL;
  checkMpi(MPI_Comm_dup(MPI_COMM_WORLD, &own), "MPI_Comm_dup");
  return std::make_unique<MpiCommunicator>(own, std::make_shared<std::atomic<double>>(0.0));
}

void checkMpi(int code, const char* call, std::source_location place) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "no text";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw base::Error(base::ErrorKind::communication, std::string(call) + " failed: " + text, place);
}

std::int64_t pieceBytes() { return pieceLimit; }

std::int64_t segmentBytes() { return std::min<std::int64_t>(60 << 10, pieceLimit); }

void setPieceBytes(std::int64_t bytes) {
  TANDEM_ASSERT(bytes >= 8 && bytes % 8 == 0, "a piece holds whole elements of every type");
  pieceLimit = bytes;
}

}  // namespace tandem::comm::detail
