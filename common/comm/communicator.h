#pragma once
// A group of ranks and what they exchange: typed collectives and point-to-point, over MPI or in a single process
// (and over NCCL once there is a GPU: the contract is the same, on device memory).
//
// Counts are 64-bit element counts everywhere; a call with more than 2^31 elements is cut into pieces behind this
// contract. Reductions are sums unless said otherwise, are performed in float32 for 16-bit floats, and give the same
// bits on every run with the same number of ranks. A failure of the library, or of another rank, is an Error of kind
// communication. Every call is collective over the group unless it is point-to-point.

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/dtype.h"
#include "common/base/error.h"

namespace tandem::comm {

enum class Reduction { sum, maximum, minimum };

// A typed run of elements in this rank's memory.
struct Buffer {
  void* data = nullptr;
  base::DType type = base::DType::u8;
  std::int64_t count = 0;
};
struct ConstBuffer {
  const void* data = nullptr;
  base::DType type = base::DType::u8;
  std::int64_t count = 0;

  ConstBuffer() = default;
  ConstBuffer(const void* data_, base::DType type_, std::int64_t count_) : data(data_), type(type_), count(count_) {}
  ConstBuffer(const Buffer& buffer) : data(buffer.data), type(buffer.type), count(buffer.count) {}
};

// A collective or message under way. The buffers must stay untouched until wait returned or test gave true.
class Request {
 public:
  virtual ~Request() = default;
  // Drives progress; true once complete. Never blocks.
  virtual bool test() = 0;
  virtual void wait() = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Ranks of this group on this rank's host, itself included.
  virtual int ranksOnThisHost() const = 0;
  // How the group talks, for logs: "MPI (Open MPI 4.1.4)", "single process".
  virtual std::string description() const = 0;

  virtual void barrier() = 0;
  virtual void broadcast(Buffer buffer, int root) = 0;
  // In place.
  virtual void allReduce(Buffer buffer, Reduction reduction = Reduction::sum) = 0;
  // Every rank gives all counts' sum of elements; rank r receives the reduced counts[r] elements of its piece, pieces
  // lying in the order of the ranks. `received` may be that very piece of `given`.
  virtual void reduceScatter(ConstBuffer given, Buffer received, std::span<const std::int64_t> counts) = 0;
  // The inverse: rank r gives counts[r] elements, every rank receives all, in the order of the ranks. `given` may lie
  // in its place in `received`.
  virtual void allGather(ConstBuffer given, Buffer received, std::span<const std::int64_t> counts) = 0;
  // Rank r receives from every rank; counts in elements, displacements are their running sums.
  virtual void allToAll(ConstBuffer given, std::span<const std::int64_t> givenCounts, Buffer received,
                        std::span<const std::int64_t> receivedCounts) = 0;
  // Point-to-point: both sides give the same count; tags run from 0 to 32766.
  virtual void send(ConstBuffer buffer, int destination, int tag) = 0;
  virtual void receive(Buffer buffer, int source, int tag) = 0;

  virtual std::unique_ptr<Request> startAllReduce(Buffer buffer, Reduction reduction = Reduction::sum) = 0;
  virtual std::unique_ptr<Request> startReduceScatter(ConstBuffer given, Buffer received,
                                                      std::span<const std::int64_t> counts) = 0;
  virtual std::unique_ptr<Request> startAllGather(ConstBuffer given, Buffer received,
                                                  std::span<const std::int64_t> counts) = 0;
  virtual std::unique_ptr<Request> startSend(ConstBuffer buffer, int destination, int tag) = 0;
  virtual std::unique_ptr<Request> startReceive(Buffer buffer, int source, int tag) = 0;

  // A group of the ranks that give the same colour, ordered by key, then by rank.
  virtual std::unique_ptr<Communicator> split(int colour, int key) = 0;

  // From now on the group's float32 sums are gradients, which may travel rounded where the user asked for that
  // (routed.h). Collective; not inherited by groups that are split off.
  virtual void carryGradients() {}

  // Seconds that this rank spent inside blocking calls and waits since the start, in this group, the one it was split
  // from and all others split from that.
  virtual double secondsWaited() const = 0;
};

// Convenience over the contract.
double allReduceScalar(Communicator& communicator, double value, Reduction reduction = Reduction::sum);
std::int64_t allReduceScalar(Communicator& communicator, std::int64_t value, Reduction reduction = Reduction::sum);
std::string broadcastText(Communicator& communicator, std::string text, int root);
// Every rank's text, in the order of the ranks, on every rank.
std::vector<std::string> allGatherTexts(Communicator& communicator, const std::string& text);

// Ends a phase in which a rank alone may have failed (reading input, opening files): if any rank brings an error, every
// rank throws the error of the lowest such rank, with its kind and message, naming that rank. So no rank is left
// waiting in a later collective.
void agree(Communicator& communicator, const std::optional<base::Error>& error);

// Any exception as an Error: an Error stays itself, exhausted memory is of kind device, a failure of std::filesystem of
// kind file, everything else of kind device.
base::Error asError(std::exception_ptr exception);

// Runs work and agrees on its outcome.
template <class Work>
void agreeOn(Communicator& communicator, Work&& work) {
  std::optional<base::Error> error;
  try {
    work();
  } catch (...) {
    error = asError(std::current_exception());
  }
  agree(communicator, error);
}

// A group of this process alone.
std::unique_ptr<Communicator> makeSingleProcess();

}  // namespace tandem::comm
