#include <atomic>
#include <cstring>
#include <deque>
#include <map>

#include "common/comm/communicator.h"
#include "common/comm/detail/checks.h"

namespace tandem::comm {
namespace {

using detail::at;

void copy(const ConstBuffer& from, const Buffer& to) {
  TANDEM_ASSERT(from.type == to.type && from.count == to.count, "sender and receiver differ in type or count");
  if (from.count > 0 && from.data != to.data) {
    std::memmove(to.data, from.data, static_cast<std::size_t>(detail::bytes(from)));
  }
}

class Done : public Request {
 public:
  bool test() override { return true; }
  void wait() override {}
};

// Messages that this process sent to itself and has not received yet, by tag.
using Mailbox = std::map<int, std::deque<std::vector<std::byte>>>;

bool takeMessage(Mailbox& mailbox, const Buffer& buffer, int tag) {
  std::deque<std::vector<std::byte>>& waiting = mailbox[tag];
  if (waiting.empty()) return false;
  TANDEM_ASSERT(std::ssize(waiting.front()) == detail::bytes(buffer), "sender and receiver differ in size");
  if (buffer.count > 0) std::memcpy(buffer.data, waiting.front().data(), waiting.front().size());
  waiting.pop_front();
  return true;
}

[[noreturn]] void nobodySends(int tag) {
  throw base::Error(
      base::ErrorKind::communication,
      "a message with tag " + std::to_string(tag) + " is awaited, but a single process has nobody who could send it");
}

class PendingReceive : public Request {
 public:
  PendingReceive(std::shared_ptr<Mailbox> mailbox, const Buffer& buffer, int tag)
      : mailbox_(std::move(mailbox)), buffer_(buffer), tag_(tag) {}
  bool test() override { return done_ = done_ || takeMessage(*mailbox_, buffer_, tag_); }
  void wait() override {
    if (!test()) nobodySends(tag_);
  }

 private:
  std::shared_ptr<Mailbox> mailbox_;
  Buffer buffer_;
  int tag_;
  bool done_ = false;
};

class SingleProcess : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  int ranksOnThisHost() const override { return 1; }
  std::string description() const override { return "single process"; }

  void barrier() override {}
  void broadcast(Buffer, int root) override { TANDEM_ASSERT(root == 0, "the root is outside the group"); }
  void allReduce(Buffer, Reduction) override {}
  void reduceScatter(ConstBuffer given, Buffer received, std::span<const std::int64_t> counts) override {
    detail::checkPieces(*this, given, received, counts);
    copy(given, received);
  }
  void allGather(ConstBuffer given, Buffer received, std::span<const std::int64_t> counts) override {
    detail::checkPieces(*this, received, given, counts);
    copy(given, received);
  }
  void allToAll(ConstBuffer given, std::span<const std::int64_t> givenCounts, Buffer received,
                std::span<const std::int64_t> receivedCounts) override {
    detail::checkPieces(*this, given, received, receivedCounts);
    detail::checkPieces(*this, received, given, givenCounts);
    copy(given, received);
  }
  void send(ConstBuffer buffer, int destination, int tag) override {
    TANDEM_ASSERT(destination == 0, "the destination is outside the group");
    const auto* bytes = static_cast<const std::byte*>(buffer.data);
    (*mailbox_)[tag].emplace_back(bytes, bytes + detail::bytes(buffer));
  }
  void receive(Buffer buffer, int source, int tag) override {
    TANDEM_ASSERT(source == 0, "the source is outside the group");
    if (!takeMessage(*mailbox_, buffer, tag)) nobodySends(tag);
  }

  std::unique_ptr<Request> startAllReduce(Buffer, Reduction) override { return std::make_unique<Done>(); }
  std::unique_ptr<Request> startReduceScatter(ConstBuffer given, Buffer received,
                                              std::span<const std::int64_t> counts) override {
    reduceScatter(given, received, counts);
    return std::make_unique<Done>();
  }
  std::unique_ptr<Request> startAllGather(ConstBuffer given, Buffer received,
                                          std::span<const std::int64_t> counts) override {
    allGather(given, received, counts);
    return std::make_unique<Done>();
  }
  std::unique_ptr<Request> startSend(ConstBuffer buffer, int destination, int tag) override {
    send(buffer, destination, tag);
    return std::make_unique<Done>();
  }
  std::unique_ptr<Request> startReceive(Buffer buffer, int source, int tag) override {
    TANDEM_ASSERT(source == 0, "the source is outside the group");
    return std::make_unique<PendingReceive>(mailbox_, buffer, tag);
  }

  std::unique_ptr<Communicator> split(int, int) override { return std::make_unique<SingleProcess>(); }
  double secondsWaited() const override { return 0; }

 private:
  std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();
};

}  // namespace

std::unique_ptr<Communicator> makeSingleProcess() { return std::make_unique<SingleProcess>(); }

}  // namespace tandem::comm
