// Exchanges of memory that the host cannot touch, by NCCL and through the host: every call, on whole and uneven pieces,
// in the order of the device's own work.

#include "common/runtime/device_communicator.h"

#include <gtest/gtest.h>

#include <numeric>

#include "common/comm/nccl_group.h"
#include "tests/mpi_test.h"

namespace tandem::runtime {
namespace {

using base::DType;
using test::world;

enum class Way { nccl, staged };

std::string nameOf(const testing::TestParamInfo<Way>& info) {
  return info.param == Way::nccl ? "nccl" : "throughTheHost";
}

class DeviceExchange : public testing::TestWithParam<Way> {
 protected:
  DeviceExchange() : backend_(kernels::makeCudaBackend({})), stream_(backend_->makeStream()) {
    ranks_ = GetParam() == Way::nccl ? makeNcclCommunicator(world(), *backend_, *stream_, false)
                                     : makeStagedCommunicator(world(), *backend_, *stream_);
  }

  // Memory of the device for so many floats.
  class Floats {
   public:
    Floats(DeviceExchange& test, std::int64_t count)
        : test_(test), data_(static_cast<float*>(test.backend_->allocate(count * 4))), count_(count) {}
    ~Floats() { test_.backend_->release(data_); }
    Floats(const Floats&) = delete;
    Floats& operator=(const Floats&) = delete;

    // As the device would write it: only enqueued.
    void fill(float value, std::int64_t begin, std::int64_t count) {
      test_.backend_->run(
          kernels::Fill{.target = kernels::TensorView(data_ + begin, DType::f32, {count}), .value = value},
          *test_.stream_);
    }
    void scale(float factor) {
      test_.backend_->run(kernels::Scale{.data = kernels::TensorView(data_, DType::f32, {count_}), .factor = factor},
                          *test_.stream_);
    }
    std::vector<float> read() {
      std::vector<float> values(static_cast<std::size_t>(count_));
      test_.backend_->copyToHost(values.data(), data_, count_ * 4, *test_.stream_);
      test_.stream_->synchronize();
      return values;
    }
    comm::Buffer part(std::int64_t begin, std::int64_t count) { return {data_ + begin, DType::f32, count}; }
    comm::Buffer all() { return part(0, count_); }

   private:
    DeviceExchange& test_;
    float* data_;
    std::int64_t count_;
  };

  static int rank() { return world().rank(); }
  static int size() { return world().size(); }
  // 1 + 2 + ... + size
  static float sumOfRanks() { return static_cast<float>(size() * (size() + 1)) / 2; }

  // Pieces of the ranks: alike, or of 3, 4, 5... elements, one of them empty.
  static std::vector<std::int64_t> counts(bool even) {
    std::vector<std::int64_t> all(static_cast<std::size_t>(size()), 5);
    if (!even) {
      std::iota(all.begin(), all.end(), 3);
      all.back() = 0;
    }
    return all;
  }
  static std::int64_t begin(const std::vector<std::int64_t>& counts, int rank) {
    return std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
  }

  std::unique_ptr<kernels::Backend> backend_;
  std::unique_ptr<kernels::Stream> stream_;
  std::unique_ptr<comm::Communicator> ranks_;
};

TEST_P(DeviceExchange, allReduceAddsWhatTheDeviceWroteBefore) {
  Floats values(*this, 1000);
  values.fill(1, 0, 1000);
  values.scale(static_cast<float>(rank() + 1));
  ranks_->allReduce(values.all(), comm::Reduction::sum);
  values.scale(2);  // after it
  EXPECT_EQ(values.read(), std::vector<float>(1000, 2 * sumOfRanks()));
  values.fill(static_cast<float>(rank()), 0, 1000);
  ranks_->allReduce(values.all(), comm::Reduction::maximum);
  EXPECT_EQ(values.read(), std::vector<float>(1000, static_cast<float>(size() - 1)));
  values.fill(static_cast<float>(rank() + 7), 0, 1000);
  ranks_->allReduce(values.all(), comm::Reduction::minimum);
  EXPECT_EQ(values.read(), std::vector<float>(1000, 7));
}

TEST_P(DeviceExchange, reduceScatterInPlaceGivesEachRankItsPiece) {
  for (const bool even : {true, false}) {
    const std::vector<std::int64_t> pieces = counts(even);
    const std::int64_t total = begin(pieces, size()), own = pieces[static_cast<std::size_t>(rank())];
    Floats values(*this, total);
    for (int piece = 0; piece < size(); ++piece) {
      const std::int64_t count = pieces[static_cast<std::size_t>(piece)];
      if (count > 0) values.fill(static_cast<float>((piece + 1) * (rank() + 1)), begin(pieces, piece), count);
    }
    ranks_->reduceScatter(values.all(), values.part(begin(pieces, rank()), own), pieces);
    const std::vector<float> result = values.read();
    for (std::int64_t i = 0; i < own; ++i) {
      EXPECT_EQ(result[static_cast<std::size_t>(begin(pieces, rank()) + i)],
                static_cast<float>(rank() + 1) * sumOfRanks())
          << (even ? "even" : "uneven");
    }
  }
}

TEST_P(DeviceExchange, allGatherInPlaceGivesAllPiecesToAll) {
  for (const bool even : {true, false}) {
    const std::vector<std::int64_t> pieces = counts(even);
    Floats values(*this, begin(pieces, size()));
    const std::int64_t own = pieces[static_cast<std::size_t>(rank())];
    values.fill(-1, 0, begin(pieces, size()));
    if (own > 0) values.fill(static_cast<float>(rank()), begin(pieces, rank()), own);
    ranks_->allGather(values.part(begin(pieces, rank()), own), values.all(), pieces);
    std::vector<float> expected;
    for (int piece = 0; piece < size(); ++piece) {
      expected.insert(expected.end(), static_cast<std::size_t>(pieces[static_cast<std::size_t>(piece)]),
                      static_cast<float>(piece));
    }
    EXPECT_EQ(values.read(), expected) << (even ? "even" : "uneven");
  }
}

TEST_P(DeviceExchange, exchangesUnderWayEndInAnyOrder) {
  constexpr int number = 5;
  std::vector<std::unique_ptr<Floats>> values;
  std::vector<std::unique_ptr<comm::Request>> requests;
  for (int i = 0; i < number; ++i) {
    values.push_back(std::make_unique<Floats>(*this, 100 + i));
    values.back()->fill(static_cast<float>(i + rank()), 0, 100 + i);
    requests.push_back(ranks_->startAllReduce(values.back()->all()));
    for (const auto& request : requests) request->test();
  }
  for (const int i : {3, 0, 4, 1, 2}) requests[static_cast<std::size_t>(i)]->wait();
  for (int i = 0; i < number; ++i) {
    const float sum = static_cast<float>(i * size()) + static_cast<float>(size() * (size() - 1)) / 2;
    EXPECT_EQ(values[static_cast<std::size_t>(i)]->read(), std::vector<float>(static_cast<std::size_t>(100 + i), sum));
  }
}

TEST_P(DeviceExchange, aTestThatIsTrueMeansThatTheResultIsInTheDevicesMemory) {
  Floats values(*this, 1000);
  values.fill(static_cast<float>(rank() + 1), 0, 1000);
  const auto request = ranks_->startAllReduce(values.all());
  while (!request->test()) {
  }
  // Through a stream that waits for nothing.
  const auto apart = backend_->makeStream();
  std::vector<float> seen(1000);
  backend_->copyToHost(seen.data(), values.all().data, 4000, *apart);
  apart->synchronize();
  EXPECT_EQ(seen, std::vector<float>(1000, sumOfRanks()));
}

TEST_P(DeviceExchange, broadcastSendReceiveAndAllToAll) {
  Floats values(*this, 6), others(*this, 6);
  values.fill(static_cast<float>(rank() + 1), 0, 6);
  ranks_->broadcast(values.all(), size() - 1);
  EXPECT_EQ(values.read(), std::vector<float>(6, static_cast<float>(size())));
  if (size() == 1) return;

  values.fill(static_cast<float>(rank()), 0, 6);
  const int next = (rank() + 1) % size(), previous = (rank() + size() - 1) % size();
  // The even ones send first: a message may wait for its receiver.
  if (rank() % 2 == 0) ranks_->send(values.all(), next, 1);
  if (size() % 2 == 1 && rank() == 0) {
    ranks_->receive(others.all(), previous, 1);
  } else if (rank() % 2 == 1) {
    ranks_->receive(others.all(), previous, 1);
    ranks_->send(values.all(), next, 1);
  } else {
    ranks_->receive(others.all(), previous, 1);
  }
  EXPECT_EQ(others.read(), std::vector<float>(6, static_cast<float>(previous)));

  Floats given(*this, 2 * size()), received(*this, 2 * size());
  for (int target = 0; target < size(); ++target) given.fill(static_cast<float>(10 * rank() + target), 2 * target, 2);
  const std::vector<std::int64_t> two(static_cast<std::size_t>(size()), 2);
  ranks_->allToAll(given.all(), two, received.all(), two);
  const std::vector<float> result = received.read();
  for (int from = 0; from < size(); ++from) {
    EXPECT_EQ(result[static_cast<std::size_t>(2 * from)], static_cast<float>(10 * from + rank()));
    EXPECT_EQ(result[static_cast<std::size_t>(2 * from + 1)], static_cast<float>(10 * from + rank()));
  }
}

TEST_P(DeviceExchange, partsExchangeAmongThemselves) {
  const auto part = ranks_->split(rank() % 2, rank());
  Floats values(*this, 3);
  values.fill(1, 0, 3);
  part->allReduce(values.all(), comm::Reduction::sum);
  EXPECT_EQ(values.read(), std::vector<float>(3, static_cast<float>(part->size())));
  EXPECT_EQ(part->size(), (size() + 1 - rank() % 2) / 2);
}

INSTANTIATE_TEST_SUITE_P(Ways, DeviceExchange, testing::Values(Way::nccl, Way::staged), nameOf);

}  // namespace
}  // namespace tandem::runtime
