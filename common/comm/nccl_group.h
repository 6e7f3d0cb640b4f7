#pragma once
// NCCL's part of a group: calls on memory of a GPU, enqueued on a stream of the caller's. common/runtime makes a
// Communicator of it, which orders them with what the device computes.

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "common/comm/communicator.h"

namespace tandem::comm {

// One rank's member of a NCCL communicator. `stream` is a cudaStream_t; a call only enqueues. Counts may differ from
// rank to rank. Reductions of 16-bit floats are not offered, since NCCL would round after every addition.
class NcclGroup {
 public:
  virtual ~NcclGroup() = default;

  virtual std::string description() const = 0;  // "NCCL 2.29.3"
  virtual void broadcast(Buffer buffer, int root, void* stream) = 0;
  virtual void allReduce(Buffer buffer, Reduction reduction, void* stream) = 0;
  virtual void reduceScatter(ConstBuffer given, Buffer received, std::span<const std::int64_t> counts,
                             void* stream) = 0;
  virtual void allGather(ConstBuffer given, Buffer received, std::span<const std::int64_t> counts, void* stream) = 0;
  virtual void allToAll(ConstBuffer given, std::span<const std::int64_t> givenCounts, Buffer received,
                        std::span<const std::int64_t> receivedCounts, void* stream) = 0;
  virtual void send(ConstBuffer buffer, int destination, void* stream) = 0;
  virtual void receive(Buffer buffer, int source, void* stream) = 0;

  // Waits on the host until `reached` is true, under the watchdog. When NCCL reports a failure meanwhile it is aborted,
  // and the failure thrown as an Error of kind communication.
  virtual void wait(const char* name, std::int64_t bytes, const std::function<bool()>& reached) = 0;
};

// Of the ranks of `ranks`, each with the CUDA device that it has taken; the id travels over `ranks`. Collective.
// Refuses versions known to deadlock (2.28.9 to 2.29.2 on aarch64) with an Error of kind device, unless told otherwise.
std::unique_ptr<NcclGroup> makeNcclGroup(Communicator& ranks, bool allowKnownBad);

// Why this program cannot use NCCL; empty if it can.
std::string whyNoNccl();
// "2.29.3", or "not in this build".
std::string ncclVersion();

}  // namespace tandem::comm
