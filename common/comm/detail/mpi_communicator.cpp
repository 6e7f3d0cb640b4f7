#include "common/comm/detail/mpi_communicator.h"

#include <algorithm>
#include <cstring>

#include "common/comm/detail/checks.h"
#include "common/comm/detail/float16.h"
#include "common/comm/detail/mpi_request.h"
#include "common/comm/detail/watchdog.h"
#include "common/comm/session.h"

namespace tandem::comm::detail {
namespace {

using base::DType;

constexpr int internalTag = 32767;  // the largest that MPI promises; the contract's tags end below it
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
void forEachPiece(std::int64_t count, DType type, Visit&& visit) {
  const std::int64_t step = pieceLimit / base::byteSize(type);
  for (std::int64_t begin = 0; begin < count; begin += step) {
    visit(begin, static_cast<int>(std::min(step, count - begin)));
  }
}

class MpiCommunicator : public Communicator {
 public:
  // Takes over the handle.
  MpiCommunicator(MPI_Comm handle, WaitedSeconds waited) : handle_(handle), waited_(std::move(waited)) {
    checkMpi(MPI_Comm_rank(handle_, &rank_), "MPI_Comm_rank");
    checkMpi(MPI_Comm_size(handle_, &size_), "MPI_Comm_size");
    MPI_Comm host = MPI_COMM_NULL;
    checkMpi(MPI_Comm_split_type(handle_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &host), "MPI_Comm_split_type");
    checkMpi(MPI_Comm_size(host, &ranksOnThisHost_), "MPI_Comm_size");
    checkMpi(MPI_Comm_free(&host), "MPI_Comm_free");
  }

  ~MpiCommunicator() override {
    if (std::uncaught_exceptions() == 0) MPI_Comm_free(&handle_);  // collective: not when the ranks may disagree
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int ranksOnThisHost() const override { return ranksOnThisHost_; }
  std::string description() const override { return "MPI (" + libraryVersion() + ")"; }

  void barrier() override {
    const CallScope scope("barrier", 0, *waited_);
    checkMpi(MPI_Barrier(handle_), "MPI_Barrier");
  }

  void broadcast(Buffer buffer, int root) override {
    checkRank(root);
    const CallScope scope("broadcast", bytes(buffer), *waited_);
    forEachPiece(buffer.count, buffer.type, [&](std::int64_t begin, int count) {
      checkMpi(MPI_Bcast(at(buffer.data, begin, buffer.type), count, mpiType(buffer.type), root, handle_), "MPI_Bcast");
    });
  }

  void allReduce(Buffer buffer, Reduction reduction) override {
    const CallScope scope("all-reduce", bytes(buffer), *waited_);
    if (isFloat16(buffer.type)) return startAllReduce(buffer, reduction)->wait();
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
    std::int64_t begin = 0;
    for (int source = 0; source < size_; ++source) {
      const std::int64_t count = receivedCounts[static_cast<std::size_t>(source)];
      if (source != rank_)
        addReceive(request, {at(received.data, begin, received.type), received.type, count}, source, internalTag);
      begin += count;
    }
    begin = 0;
    for (int destination = 0; destination < size_; ++destination) {
      const std::int64_t count = givenCounts[static_cast<std::size_t>(destination)];
      if (destination == rank_) {
        TANDEM_ASSERT(count == receivedCounts[static_cast<std::size_t>(rank_)], "a rank gives itself what it receives");
        copyOwn({at(given.data, begin, given.type), given.type, count}, received, receivedCounts);
      } else {
        addSend(request, {at(given.data, begin, given.type), given.type, count}, destination, internalTag);
      }
      begin += count;
    }
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
    return request;
  }

  std::unique_ptr<Request> startReduceScatter(ConstBuffer given, Buffer received,
                                              std::span<const std::int64_t> counts) override {
    checkPieces(*this, given, received, counts);
    auto request = std::make_unique<MpiRequest>("reduce-scatter", bytes(given), waited_);
    ConstBuffer work = given;
    Buffer result = received;
    if (isFloat16(given.type)) {
      float* const staging = request->makeStaging(given.count);
      widen(given.data, given.type, given.count, staging);
      float* const own = staging + sum(counts.first(static_cast<std::size_t>(rank_)));
      work = {staging, DType::f32, given.count};
      result = {own, DType::f32, received.count};
      request->whenComplete([received, own] { narrow(own, received.count, received.type, received.data); });
    }
    std::int64_t begin = 0;
    for (int root = 0; root < size_; ++root) {
      const std::int64_t count = counts[static_cast<std::size_t>(root)];
      addReduction(*request, {at(work.data, begin, work.type), work.type, count}, result, root);
      begin += count;
    }
    return request;
  }

  std::unique_ptr<Request> startAllGather(ConstBuffer given, Buffer received,
                                          std::span<const std::int64_t> counts) override {
    checkPieces(*this, received, given, counts);
    auto request = std::make_unique<MpiRequest>("all-gather", bytes(received), waited_);
    std::int64_t begin = 0;
    for (int source = 0; source < size_; ++source) {
      const std::int64_t count = counts[static_cast<std::size_t>(source)];
      if (source != rank_)
        addReceive(*request, {at(received.data, begin, received.type), received.type, count}, source, internalTag);
      begin += count;
    }
    for (int step = 1; step < size_; ++step) addSend(*request, given, (rank_ + step) % size_, internalTag);
    copyOwn(given, received, counts);
    return request;
  }

  std::unique_ptr<Request> startSend(ConstBuffer buffer, int destination, int tag) override {
    checkMessage(destination, tag);
    auto request = std::make_unique<MpiRequest>("send", bytes(buffer), waited_);
    addSend(*request, buffer, destination, tag);
    return request;
  }

  std::unique_ptr<Request> startReceive(Buffer buffer, int source, int tag) override {
    checkMessage(source, tag);
    auto request = std::make_unique<MpiRequest>("receive", bytes(buffer), waited_);
    addReceive(*request, buffer, source, tag);
    return request;
  }

  std::unique_ptr<Communicator> split(int colour, int key) override {
    TANDEM_ASSERT(colour >= 0, "the colour of a split is negative");
    const CallScope scope("split", 0, *waited_);
    MPI_Comm part = MPI_COMM_NULL;
    checkMpi(MPI_Comm_split(handle_, colour, key, &part), "MPI_Comm_split");
    return std::make_unique<MpiCommunicator>(part, waited_);
  }

  double secondsWaited() const override { return *waited_; }

 private:
  void checkRank(int rank) const { TANDEM_ASSERT(rank >= 0 && rank < size_, "the rank is outside the group"); }
  void checkMessage(int rank, int tag) const {
    checkRank(rank);
    TANDEM_ASSERT(tag >= 0 && tag < internalTag, "the tag is out of range");
  }

  void addSend(MpiRequest& request, const ConstBuffer& buffer, int destination, int tag) {
    forEachPiece(buffer.count, buffer.type, [&](std::int64_t begin, int count) {
      checkMpi(MPI_Isend(at(buffer.data, begin, buffer.type), count, mpiType(buffer.type), destination, tag, handle_,
                         request.add()),
               "MPI_Isend");
    });
  }

  void addReceive(MpiRequest& request, const Buffer& buffer, int source, int tag) {
    forEachPiece(buffer.count, buffer.type, [&](std::int64_t begin, int count) {
      checkMpi(MPI_Irecv(at(buffer.data, begin, buffer.type), count, mpiType(buffer.type), source, tag, handle_,
                         request.add()),
               "MPI_Irecv");
    });
  }

  // The sum of every rank's piece goes to `result` on the root. MPI forbids that both are the same memory, and has
  // MPI_IN_PLACE for it.
  void addReduction(MpiRequest& request, const ConstBuffer& piece, const Buffer& result, int root) {
    forEachPiece(piece.count, piece.type, [&](std::int64_t begin, int count) {
      const bool isRoot = root == rank_;
      const void* source = at(piece.data, begin, piece.type);
      void* target = isRoot ? at(result.data, begin, result.type) : nullptr;
      checkMpi(MPI_Ireduce(isRoot && source == target ? MPI_IN_PLACE : source, target, count, mpiType(piece.type),
                           MPI_SUM, root, handle_, request.add()),
               "MPI_Ireduce");
    });
  }

  // Puts this rank's own piece into its place among all.
  void copyOwn(const ConstBuffer& own, const Buffer& all, std::span<const std::int64_t> counts) const {
    void* const place = at(all.data, sum(counts.first(static_cast<std::size_t>(rank_))), all.type);
    if (own.count > 0 && place != own.data) std::memmove(place, own.data, static_cast<std::size_t>(bytes(own)));
  }

  MPI_Comm handle_;
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

void setPieceBytes(std::int64_t bytes) {
  TANDEM_ASSERT(bytes >= 8 && bytes % 8 == 0, "a piece holds whole elements of every type");
  pieceLimit = bytes;
}

}  // namespace tandem::comm::detail
