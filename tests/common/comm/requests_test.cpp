#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

#include "common/comm/detail/progress.h"
#include "tests/common/comm/element_values.h"
#include "tests/common/comm/piece_limit.h"
#include "tests/mpi_test.h"

namespace tandem::test {
namespace {

class Requests : public WithPieces {
 protected:
  comm::Communicator& all = world();
  const int rank = all.rank();
  const int ranks = all.size();
};
INSTANTIATE_TEST_SUITE_P(, Requests, pieceLimits, pieceName);

// One collective of each kind on its own buffers, with the check of its result.
struct UnderWay {
  UnderWay(comm::Communicator& all_, DType type, int salt_)
      : all(all_),
        salt(salt_),
        counts(unevenCounts(all.size(), salt)),
        total(sumOf(counts, all.size())),
        begin(sumOf(counts, all.rank())),
        own(counts[static_cast<std::size_t>(all.rank())]),
        reduced(type, 31),
        scattered(type, total),
        gathered(type, total) {
    for (int i = 0; i < 31; ++i) reduced.set(i, i % 7 + salt);
    for (int i = 0; i < total; ++i) scattered.set(i, i % 11 + all.rank());
    for (int i = 0; i < own; ++i) gathered.set(begin + i, static_cast<int>(begin) + i + salt);
    requests.push_back(all.startAllReduce(reduced.buffer()));
    requests.push_back(all.startReduceScatter(scattered.buffer(), scattered.part(begin, own), counts));
    requests.push_back(all.startAllGather(gathered.part(begin, own), gathered.buffer(), counts));
  }

  void expectResults() const {
    const int n = all.size();
    for (int i = 0; i < 31; ++i) EXPECT_TRUE(reduced.holds(i, n * (i % 7 + salt)));
    for (int i = 0; i < own; ++i) {
      EXPECT_TRUE(scattered.holds(begin + i, n * static_cast<int>((begin + i) % 11) + n * (n - 1) / 2));
    }
    for (int i = 0; i < total; ++i) EXPECT_TRUE(gathered.holds(i, i + salt));
  }

  comm::Communicator& all;
  int salt;
  std::vector<std::int64_t> counts;
  std::int64_t total, begin, own;
  Elements reduced, scattered, gathered;
  std::vector<std::unique_ptr<comm::Request>> requests;
};

TEST_P(Requests, manyCollectivesOverlapAndAreAwaitedInAnyOrder) {
  for (const DType type : allTypes) {
    UnderWay first(all, type, 0), second(all, type, 1), third(all, type, 2);
    for (UnderWay* each : {&third, &first, &second}) {
      for (auto request = each->requests.rbegin(); request != each->requests.rend(); ++request) (*request)->wait();
      each->expectResults();
    }
  }
}

TEST_P(Requests, testAloneDrivesThemToTheirEnd) {
  UnderWay work(all, DType::bf16, 1);
  for (const std::unique_ptr<comm::Request>& request : work.requests) {
    while (!request->test()) {
    }
    EXPECT_TRUE(request->test());
    request->wait();
  }
  work.expectResults();
}

TEST_P(Requests, blockingCallsWorkWhileRequestsAreUnderWay) {
  UnderWay work(all, DType::f32, 0);
  EXPECT_EQ(comm::allReduceScalar(all, std::int64_t{1}), ranks);
  all.barrier();
  for (const std::unique_ptr<comm::Request>& request : work.requests) request->wait();
  work.expectResults();
}

TEST_P(Requests, aRequestThatIsDroppedIsCompletedFirst) {
  UnderWay work(all, DType::f32, 0);
  work.requests.clear();
  work.expectResults();
}

TEST_P(Requests, messagesCrossWithoutABlock) {
  const int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
  Elements given(DType::i32, 50), received(DType::i32, 50), small(DType::u8, 1), other(DType::u8, 1);
  for (int i = 0; i < 50; ++i) given.set(i, i * 3 + rank);
  small.set(0, rank);
  std::vector<std::unique_ptr<comm::Request>> requests;
  requests.push_back(all.startReceive(other.buffer(), previous, 8));
  requests.push_back(all.startReceive(received.buffer(), previous, 7));
  requests.push_back(all.startSend(given.buffer(), next, 7));
  requests.push_back(all.startSend(small.buffer(), next, 8));
  for (const std::unique_ptr<comm::Request>& request : requests) request->wait();
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(received.holds(i, i * 3 + previous));
  EXPECT_TRUE(other.holds(0, previous));
}

TEST_P(Requests, giveTheSameBitsAsTheBlockingForms) {
  std::vector<float> given(997);
  for (std::size_t i = 0; i < given.size(); ++i) {
    given[i] = std::cos(static_cast<float>(i) * 1.7f + static_cast<float>(rank)) * 1e4f;
  }
  std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks), 997 / ranks);
  counts.back() += 997 % ranks;
  const std::int64_t own = counts[static_cast<std::size_t>(rank)];
  std::vector<float> blocking(static_cast<std::size_t>(own)), started(static_cast<std::size_t>(own));
  all.reduceScatter({given.data(), DType::f32, 997}, {blocking.data(), DType::f32, own}, counts);
  all.startReduceScatter({given.data(), DType::f32, 997}, {started.data(), DType::f32, own}, counts)->wait();
  EXPECT_EQ(blocking, started);
}

// Complete, or failing, when it is asked for the fifth time.
class FifthTime : public comm::Request {
 public:
  FifthTime(std::atomic<int>& asked, bool fails) : asked_(asked), fails_(fails) {}
  bool test() override {
    if (asked_ == 5) return true;
    if (++asked_ < 5) return false;
    if (fails_) throw base::Error(base::ErrorKind::communication, "the link is gone");
    return true;
  }
  void wait() override {}

 private:
  std::atomic<int>& asked_;
  const bool fails_;
};

TEST(AttendedRequest, goesOnWhileNobodyAsks) {
  std::atomic<int> asked = 0;
  comm::detail::Attended request(std::make_unique<FifthTime>(asked, false));
  while (asked < 5) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(request.test());
  request.wait();
  EXPECT_EQ(asked, 5);
}

TEST(AttendedRequest, tellsWhatFailedToWhoeverAsksNext) {
  std::atomic<int> asked = 0;
  comm::detail::Attended request(std::make_unique<FifthTime>(asked, true));
  while (asked < 5) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_THROW(request.wait(), base::Error);
}

}  // namespace
}  // namespace tandem::test
