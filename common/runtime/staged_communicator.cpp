#include <algorithm>
#include <deque>
#include <functional>

#include "common/runtime/detail/device_group.h"
#include "common/runtime/device_communicator.h"

namespace tandem::runtime {
namespace {

using comm::Buffer;
using comm::ConstBuffer;
using comm::Request;
using Counts = std::span<const std::int64_t>;

std::int64_t bytesOf(const ConstBuffer& buffer) { return buffer.count * base::byteSize(buffer.type); }

// Pinned memory of one exchange, given back to the pool that it came from: pinning costs milliseconds.
class StagingPool {
 public:
  explicit StagingPool(kernels::Backend& backend) : backend_(backend) {}
  ~StagingPool() {
    for (const Block& block : free_) backend_.releaseStaging(block.data);
  }
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;

  struct Block {
    void* data = nullptr;
    std::int64_t bytes = 0;
  };
  Block take(std::int64_t bytes) {
    for (auto block = free_.begin(); block != free_.end(); ++block) {
      if (block->bytes < bytes) continue;
      const Block found = *block;
      free_.erase(block);
      return found;
    }
    return {backend_.allocateStaging(bytes), bytes};
  }
  void giveBack(const Block& block) { free_.push_back(block); }

 private:
  kernels::Backend& backend_;
  std::deque<Block> free_;
};

// What the host's group is to start, on copies in the host's memory.
using Start = std::function<std::unique_ptr<Request>(void* given, void* received)>;

// An exchange: the given elements come to the host, travel, and the received ones go to the device. The group's calls
// have to start in the same order on all ranks, so an exchange begins to travel only after the one before it.
class Exchange {
 public:
  Exchange(kernels::Backend& backend, kernels::Stream& stream, StagingPool& pool, ConstBuffer given, Buffer received,
           Start start)
      : backend_(backend), stream_(stream), pool_(pool), received_(received), start_(std::move(start)) {
    given_ = pool.take(bytesOf(given));
    back_ = pool.take(bytesOf(received));
    backend.copyToHost(given_.data, given.data, bytesOf(given), stream);
    atHost_ = stream.record();
  }
  ~Exchange() {
    if (onDevice_) onDevice_->synchronize();  // the staging memory is still being read
    pool_.giveBack(given_);
    pool_.giveBack(back_);
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // Goes on as far as is possible without waiting; true once the last copy is enqueued.
  bool proceed() {
    if (!travelling_ && atHost_->reached()) travelling_ = start_(given_.data, back_.data);
    if (travelling_ && !onDevice_ && travelling_->test()) copyBack();
    return onDevice_ != nullptr;
  }
  // Waits for the device and travels.
  void begin() {
    if (travelling_) return;
    atHost_->synchronize();
    travelling_ = start_(given_.data, back_.data);
  }
  void finish() {
    begin();
    if (onDevice_) return;
    travelling_->wait();
    copyBack();
  }
  bool hasStarted() const { return travelling_ != nullptr; }
  kernels::Event& onDevice() const { return *onDevice_; }

 private:
  void copyBack() {
    backend_.copyToDevice(received_.data, back_.data, bytesOf(received_), stream_);
    onDevice_ = stream_.record();
  }

  kernels::Backend& backend_;
  kernels::Stream& stream_;
  StagingPool& pool_;
  Buffer received_;
  Start start_;
  StagingPool::Block given_, back_;
  std::unique_ptr<kernels::Event> atHost_, onDevice_;
  std::unique_ptr<Request> travelling_;
};

class StagedCommunicator final : public detail::DeviceGroup {
 public:
  StagedCommunicator(comm::Communicator& ranks, std::unique_ptr<comm::Communicator> owned, kernels::Backend& backend,
                     kernels::Stream& compute)
      : DeviceGroup(ranks, std::move(owned), backend, compute), pool_(backend) {}

  std::string description() const override { return ranks_.description() + " through the host's memory"; }
  void broadcast(Buffer buffer, int root) override {
    atOnce(buffer, buffer, [&](void* given, void* received) {
      ranks_.broadcast({given, buffer.type, buffer.count}, root);
      std::copy_n(static_cast<const std::byte*>(given), bytesOf(buffer), static_cast<std::byte*>(received));
    });
  }
  void allToAll(ConstBuffer given, Counts givenCounts, Buffer received, Counts receivedCounts) override {
    atOnce(given, received, [&](void* from, void* to) {
      ranks_.allToAll({from, given.type, given.count}, givenCounts, {to, received.type, received.count},
                      receivedCounts);
    });
  }
  std::unique_ptr<Request> startAllReduce(Buffer buffer, comm::Reduction reduction) override {
    return start(buffer, buffer, [=, this](void* given, void* received) {
      // In place at the receiving copy, which is the one that goes back.
      std::copy_n(static_cast<const std::byte*>(given), bytesOf(buffer), static_cast<std::byte*>(received));
      return ranks_.startAllReduce({received, buffer.type, buffer.count}, reduction);
    });
  }
  std::unique_ptr<Request> startReduceScatter(ConstBuffer given, Buffer received, Counts counts) override {
    return start(given, received, [=, this, own = keep(counts)](void* from, void* to) {
      return ranks_.startReduceScatter({from, given.type, given.count}, {to, received.type, received.count}, own);
    });
  }
  std::unique_ptr<Request> startAllGather(ConstBuffer given, Buffer received, Counts counts) override {
    return start(given, received, [=, this, own = keep(counts)](void* from, void* to) {
      return ranks_.startAllGather({from, given.type, given.count}, {to, received.type, received.count}, own);
    });
  }
  // Travels at once, after waiting for the device: the sender may turn to other groups next and wait there for what its
  // receiver makes of the message.
  std::unique_ptr<Request> startSend(ConstBuffer buffer, int destination, int tag) override {
    auto request = start(buffer, {nullptr, buffer.type, 0}, [=, this](void* given, void*) {
      return ranks_.startSend({given, buffer.type, buffer.count}, destination, tag);
    });
    startUntil(*notStarted_.back());
    return request;
  }
  std::unique_ptr<Request> startReceive(Buffer buffer, int source, int tag) override {
    return start({nullptr, buffer.type, 0}, buffer, [=, this](void*, void* received) {
      return ranks_.startReceive({received, buffer.type, buffer.count}, source, tag);
    });
  }

  std::unique_ptr<comm::Communicator> split(int colour, int key) override {
    auto part = ranks_.split(colour, key);
    comm::Communicator& group = *part;
    return std::make_unique<StagedCommunicator>(group, std::move(part), backend_, compute_);
  }

 private:
  class Handle final : public Request {
   public:
    Handle(StagedCommunicator& owner, std::shared_ptr<Exchange> exchange)
        : owner_(owner), exchange_(std::move(exchange)) {}
    bool test() override {
      owner_.proceed();
      return exchange_->hasStarted() && exchange_->proceed() && exchange_->onDevice().reached();
    }
    void wait() override {
      owner_.startUntil(*exchange_);
      exchange_->finish();
      owner_.compute_.waitFor(exchange_->onDevice());
    }

   private:
    StagedCommunicator& owner_;
    std::shared_ptr<Exchange> exchange_;
  };

  static std::vector<std::int64_t> keep(Counts counts) { return {counts.begin(), counts.end()}; }

  std::unique_ptr<Request> start(ConstBuffer given, Buffer received, Start begin) {
    stream_->waitFor(*compute_.record());
    const auto exchange = std::make_shared<Exchange>(backend_, *stream_, pool_, given, received, std::move(begin));
    notStarted_.push_back(exchange);
    return std::make_unique<Handle>(*this, exchange);
  }

  // Lets those that wait for their turn travel, in the order of their start.
  void proceed() {
    while (!notStarted_.empty()) {
      notStarted_.front()->proceed();
      if (!notStarted_.front()->hasStarted()) return;
      notStarted_.pop_front();
    }
  }

  // The same, waiting for the device, up to the given one.
  void startUntil(const Exchange& last) {
    while (!last.hasStarted()) {
      notStarted_.front()->begin();
      notStarted_.pop_front();
    }
  }

  template <class Work>
  void atOnce(ConstBuffer given, Buffer received, Work&& work) {
    TANDEM_ASSERT(notStarted_.empty(), "a blocking call overtakes exchanges that were started before it");
    const StagingPool::Block from = pool_.take(bytesOf(given)), to = pool_.take(bytesOf(received));
    backend_.copyToHost(from.data, given.data, bytesOf(given), compute_);
    compute_.synchronize();
    work(from.data, to.data);
    backend_.copyToDevice(received.data, to.data, bytesOf(received), compute_);
    compute_.synchronize();
    pool_.giveBack(from);
    pool_.giveBack(to);
  }

  StagingPool pool_;
  std::deque<std::shared_ptr<Exchange>> notStarted_;
};

}  // namespace

std::unique_ptr<comm::Communicator> makeStagedCommunicator(comm::Communicator& ranks, kernels::Backend& backend,
                                                           kernels::Stream& compute) {
  return std::make_unique<StagedCommunicator>(ranks, nullptr, backend, compute);
}

}  // namespace tandem::runtime
