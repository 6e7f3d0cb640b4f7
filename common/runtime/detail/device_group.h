#pragma once
// What the communicators for memory of a device have in common: the host's group behind them, the streams, and blocking
// calls, which start and wait.

#include <memory>

#include "common/comm/communicator.h"
#include "kernels/backend.h"

namespace tandem::runtime::detail {

class DeviceGroup : public comm::Communicator {
 public:
  // `owned` is `ranks` where nobody else holds it, as after a split.
  DeviceGroup(comm::Communicator& ranks, std::unique_ptr<comm::Communicator> owned, kernels::Backend& backend,
              kernels::Stream& compute)
      : owned_(std::move(owned)), ranks_(ranks), backend_(backend), compute_(compute), stream_(backend.makeStream()) {}

  int rank() const override { return ranks_.rank(); }
  int size() const override { return ranks_.size(); }
  int ranksOnThisHost() const override { return ranks_.ranksOnThisHost(); }
  double secondsWaited() const override { return ranks_.secondsWaited(); }

  void carryGradients() override { ranks_.carryGradients(); }
  void barrier() override {
    compute_.synchronize();
    ranks_.barrier();
  }
  void allReduce(comm::Buffer buffer, comm::Reduction reduction) override { startAllReduce(buffer, reduction)->wait(); }
  void reduceScatter(comm::ConstBuffer given, comm::Buffer received, std::span<const std::int64_t> counts) override {
    startReduceScatter(given, received, counts)->wait();
  }
  void allGather(comm::ConstBuffer given, comm::Buffer received, std::span<const std::int64_t> counts) override {
    startAllGather(given, received, counts)->wait();
  }
  void send(comm::ConstBuffer buffer, int destination, int tag) override {
    startSend(buffer, destination, tag)->wait();
  }
  void receive(comm::Buffer buffer, int source, int tag) override { startReceive(buffer, source, tag)->wait(); }

 private:
  std::unique_ptr<comm::Communicator> owned_;

 protected:
  static std::int64_t bytesOf(const comm::ConstBuffer& buffer) { return buffer.count * base::byteSize(buffer.type); }

  comm::Communicator& ranks_;
  kernels::Backend& backend_;
  kernels::Stream& compute_;
  std::unique_ptr<kernels::Stream> stream_;  // of the exchanges
};

}  // namespace tandem::runtime::detail
