#include "common/comm/nccl_group.h"
#include "common/runtime/detail/device_group.h"
#include "common/runtime/device_communicator.h"

namespace tandem::runtime {
namespace {

using comm::Buffer;
using comm::ConstBuffer;
using Counts = std::span<const std::int64_t>;

class NcclCommunicator final : public detail::DeviceGroup {
 public:
  NcclCommunicator(comm::Communicator& ranks, std::unique_ptr<comm::Communicator> owned, kernels::Backend& backend,
                   kernels::Stream& compute, bool allowKnownBad)
      : DeviceGroup(ranks, std::move(owned), backend, compute),
        allowKnownBad_(allowKnownBad),
        nccl_(comm::makeNcclGroup(ranks, allowKnownBad)) {}

  std::string description() const override { return nccl_->description() + " beside " + ranks_.description(); }
  void broadcast(Buffer buffer, int root) override {
    start("broadcast", buffer, [&] { nccl_->broadcast(buffer, root, stream_->handle()); })->wait();
  }
  void allToAll(ConstBuffer given, Counts givenCounts, Buffer received, Counts receivedCounts) override {
    start("allToAll", given, [&] {
      nccl_->allToAll(given, givenCounts, received, receivedCounts, stream_->handle());
    })->wait();
  }
  std::unique_ptr<comm::Request> startAllReduce(Buffer buffer, comm::Reduction reduction) override {
    return start("allReduce", buffer, [&] { nccl_->allReduce(buffer, reduction, stream_->handle()); });
  }
  std::unique_ptr<comm::Request> startReduceScatter(ConstBuffer given, Buffer received, Counts counts) override {
    return start("reduceScatter", given, [&] { nccl_->reduceScatter(given, received, counts, stream_->handle()); });
  }
  std::unique_ptr<comm::Request> startAllGather(ConstBuffer given, Buffer received, Counts counts) override {
    return start("allGather", received, [&] { nccl_->allGather(given, received, counts, stream_->handle()); });
  }
  // NCCL has no tags: messages between two ranks arrive in the order of their sending.
  std::unique_ptr<comm::Request> startSend(ConstBuffer buffer, int destination, int) override {
    return start("send", buffer, [&] { nccl_->send(buffer, destination, stream_->handle()); });
  }
  std::unique_ptr<comm::Request> startReceive(Buffer buffer, int source, int) override {
    return start("receive", buffer, [&] { nccl_->receive(buffer, source, stream_->handle()); });
  }

  std::unique_ptr<comm::Communicator> split(int colour, int key) override {
    auto part = ranks_.split(colour, key);
    comm::Communicator& group = *part;
    return std::make_unique<NcclCommunicator>(group, std::move(part), backend_, compute_, allowKnownBad_);
  }

 private:
  class Exchange final : public comm::Request {
   public:
    Exchange(NcclCommunicator& owner, const char* name, std::int64_t bytes)
        : owner_(owner), name_(name), bytes_(bytes), done_(owner.stream_->record()) {}
    bool test() override { return done_->reached(); }
    void wait() override {
      owner_.nccl_->wait(name_, bytes_, [this] { return done_->reached(); });
      owner_.compute_.waitFor(*done_);
    }

   private:
    NcclCommunicator& owner_;
    const char* name_;
    std::int64_t bytes_;
    std::unique_ptr<kernels::Event> done_;
  };

  template <class Enqueue>
  std::unique_ptr<comm::Request> start(const char* name, const ConstBuffer& buffer, Enqueue&& enqueue) {
    stream_->waitFor(*compute_.record());
    enqueue();
    return std::make_unique<Exchange>(*this, name, bytesOf(buffer));
  }

  bool allowKnownBad_;
  std::unique_ptr<comm::NcclGroup> nccl_;
};

}  // namespace

std::unique_ptr<comm::Communicator> makeNcclCommunicator(comm::Communicator& ranks, kernels::Backend& backend,
                                                         kernels::Stream& compute, bool allowKnownBadNccl) {
  return std::make_unique<NcclCommunicator>(ranks, nullptr, backend, compute, allowKnownBadNccl);
}

}  // namespace tandem::runtime
