#include "common/comm/nccl_group.h"

#include <nccl.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "common/comm/detail/checks.h"
#include "common/comm/detail/watchdog.h"
#include "common/comm/nccl_fault.h"

namespace tandem::comm {
namespace {

using detail::at;

std::string versionText(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

int runningVersion() {
  int version = 0;
  return ncclGetVersion(&version) == ncclSuccess ? version : 0;
}

void check(ncclResult_t result, const char* call) {
  if (result == ncclSuccess) return;
  throw base::Error(base::ErrorKind::communication, std::string(call) + ": " + ncclGetErrorString(result) +
                                                        "; NCCL_DEBUG=INFO in the environment shows more");
}

ncclDataType_t typeOf(base::DType type) {
  switch (type) {
    case base::DType::f64:
      return ncclFloat64;
    case base::DType::f32:
      return ncclFloat32;
    case base::DType::bf16:
      return ncclBfloat16;
    case base::DType::f16:
      return ncclFloat16;
    case base::DType::i64:
      return ncclInt64;
    case base::DType::i32:
      return ncclInt32;
    case base::DType::u64:
      return ncclUint64;
    case base::DType::u32:
      return ncclUint32;
    case base::DType::u16:
      break;
    case base::DType::u8:
      return ncclUint8;
    case base::DType::i8:
      return ncclInt8;
  }
  throw base::Error(base::ErrorKind::communication, std::string("NCCL does not exchange ") + base::name(type));
}

ncclRedOp_t operationOf(Reduction reduction) {
  return reduction == Reduction::sum ? ncclSum : reduction == Reduction::maximum ? ncclMax : ncclMin;
}

void refuseShortFloats(base::DType type) {
  TANDEM_ASSERT(type != base::DType::bf16 && type != base::DType::f16, "NCCL would sum 16-bit floats in 16 bits");
}

cudaStream_t streamOf(void* stream) { return static_cast<cudaStream_t>(stream); }
std::size_t sizeOf(std::int64_t count) { return static_cast<std::size_t>(count); }

// The calls between are one: they start together.
class Together {
 public:
  Together() { check(ncclGroupStart(), "ncclGroupStart"); }
  void end() { check(ncclGroupEnd(), "ncclGroupEnd"); }
};

bool areEqual(std::span<const std::int64_t> counts) {
  for (const std::int64_t count : counts) {
    if (count != counts[0]) return false;
  }
  return true;
}

class Group : public NcclGroup {
 public:
  explicit Group(Communicator& ranks) : rank_(ranks.rank()), size_(ranks.size()) {
    ncclUniqueId id{};
    agreeOn(ranks, [&] {
      if (rank_ == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    });
    ranks.broadcast({&id, base::DType::u8, sizeof id}, 0);
    agreeOn(ranks, [&] { check(ncclCommInitRank(&group_, size_, id, rank_), "ncclCommInitRank"); });
  }
  ~Group() override {
    if (group_ != nullptr) ncclCommDestroy(group_);
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  std::string description() const override { return "NCCL " + versionText(runningVersion()); }

  void broadcast(Buffer buffer, int root, void* stream) override {
    check(ncclBroadcast(buffer.data, buffer.data, sizeOf(buffer.count), typeOf(buffer.type), root, group_,
                        streamOf(stream)),
          "ncclBroadcast");
  }

  void allReduce(Buffer buffer, Reduction reduction, void* stream) override {
    refuseShortFloats(buffer.type);
    check(ncclAllReduce(buffer.data, buffer.data, sizeOf(buffer.count), typeOf(buffer.type), operationOf(reduction),
                        group_, streamOf(stream)),
          "ncclAllReduce");
  }

  void reduceScatter(ConstBuffer given, Buffer received, std::span<const std::int64_t> counts, void* stream) override {
    refuseShortFloats(given.type);
    if (areEqual(counts)) {
      check(ncclReduceScatter(given.data, received.data, sizeOf(received.count), typeOf(given.type), ncclSum, group_,
                              streamOf(stream)),
            "ncclReduceScatter");
      return;
    }
    Together together;
    std::int64_t begin = 0;
    for (int rank = 0; rank < size_; ++rank) {
      const std::int64_t count = counts[static_cast<std::size_t>(rank)];
      const std::byte* const piece = at(given.data, begin, given.type);
      begin += count;
      if (count == 0) continue;
      // Only the root's target is written.
      check(
          ncclReduce(piece, received.data, sizeOf(count), typeOf(given.type), ncclSum, rank, group_, streamOf(stream)),
          "ncclReduce");
    }
    together.end();
  }

  void allGather(ConstBuffer given, Buffer received, std::span<const std::int64_t> counts, void* stream) override {
    if (areEqual(counts)) {
      check(ncclAllGather(given.data, received.data, sizeOf(given.count), typeOf(given.type), group_, streamOf(stream)),
            "ncclAllGather");
      return;
    }
    Together together;
    std::int64_t begin = 0;
    for (int rank = 0; rank < size_; ++rank) {
      const std::int64_t count = counts[static_cast<std::size_t>(rank)];
      std::byte* const piece = at(received.data, begin, received.type);
      begin += count;
      if (count == 0) continue;
      check(ncclBroadcast(rank == rank_ ? given.data : piece, piece, sizeOf(count), typeOf(given.type), rank, group_,
                          streamOf(stream)),
            "ncclBroadcast");
    }
    together.end();
  }

  void allToAll(ConstBuffer given, std::span<const std::int64_t> givenCounts, Buffer received,
                std::span<const std::int64_t> receivedCounts, void* stream) override {
    Together together;
    std::int64_t sent = 0, got = 0;
    for (int rank = 0; rank < size_; ++rank) {
      const std::int64_t toSend = givenCounts[static_cast<std::size_t>(rank)];
      const std::int64_t toReceive = receivedCounts[static_cast<std::size_t>(rank)];
      if (toSend > 0) send({at(given.data, sent, given.type), given.type, toSend}, rank, stream);
      if (toReceive > 0) receive({at(received.data, got, received.type), received.type, toReceive}, rank, stream);
      sent += toSend;
      got += toReceive;
    }
    together.end();
  }

  void send(ConstBuffer buffer, int destination, void* stream) override {
    check(ncclSend(buffer.data, sizeOf(buffer.count), typeOf(buffer.type), destination, group_, streamOf(stream)),
          "ncclSend");
  }
  void receive(Buffer buffer, int source, void* stream) override {
    check(ncclRecv(buffer.data, sizeOf(buffer.count), typeOf(buffer.type), source, group_, streamOf(stream)),
          "ncclRecv");
  }

  void wait(const char* name, std::int64_t bytes, const std::function<bool()>& reached) override {
    const detail::CallScope scope(name, bytes, waited_);
    while (!reached()) {
      ncclResult_t state = ncclSuccess;
      check(ncclCommGetAsyncError(group_, &state), "ncclCommGetAsyncError");
      if (state != ncclSuccess && state != ncclInProgress) {
        ncclCommAbort(group_);
        group_ = nullptr;
        check(state, name);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

 private:
  int rank_, size_;
  ncclComm_t group_ = nullptr;
  std::atomic<double> waited_{0};
};

#if defined(__aarch64__)
constexpr const char* architecture = "aarch64";
#else
constexpr const char* architecture = "another";
#endif

std::string whyRefused(int version) {
  if (version == 0) return "NCCL does not tell its version";
  const std::optional<NcclFault> fault = ncclFault(versionText(version), architecture);
  if (!fault || !fault->deadlocks) return "";
  return "NCCL " + versionText(version) + " deadlocks on this processor (" + fault->what +
         "); install 2.29.3 or newer, or give --allow-known-bad-nccl to run all the same";
}

}  // namespace

std::unique_ptr<NcclGroup> makeNcclGroup(Communicator& ranks, bool allowKnownBad) {
  const std::string reason = whyRefused(runningVersion());
  if (!reason.empty() && !allowKnownBad) throw base::Error(base::ErrorKind::device, reason);
  return std::make_unique<Group>(ranks);
}

std::string whyNoNccl() { return ""; }

std::string ncclVersion() { return versionText(runningVersion()); }

}  // namespace tandem::comm
