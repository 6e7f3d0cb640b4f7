#include <gtest/gtest.h>

#include "common/comm/communicator.h"

namespace tandem::test {
namespace {

using base::DType;

class SingleProcess : public testing::Test {
 protected:
  const std::unique_ptr<comm::Communicator> self = comm::makeSingleProcess();
};

TEST_F(SingleProcess, isAGroupOfOne) {
  EXPECT_EQ(self->rank(), 0);
  EXPECT_EQ(self->size(), 1);
  EXPECT_EQ(self->ranksOnThisHost(), 1);
  EXPECT_EQ(self->split(3, 0)->size(), 1);
  EXPECT_EQ(self->secondsWaited(), 0);
}

TEST_F(SingleProcess, collectivesCopyWhatTheyAreGiven) {
  std::vector<float> given = {1, 2, 3}, received(3);
  const std::vector<std::int64_t> counts = {3};
  self->reduceScatter({given.data(), DType::f32, 3}, {received.data(), DType::f32, 3}, counts);
  EXPECT_EQ(received, given);
  received.assign(3, 0);
  self->allGather({given.data(), DType::f32, 3}, {received.data(), DType::f32, 3}, counts);
  EXPECT_EQ(received, given);
  received.assign(3, 0);
  self->allToAll({given.data(), DType::f32, 3}, counts, {received.data(), DType::f32, 3}, counts);
  EXPECT_EQ(received, given);
  self->startReduceScatter({given.data(), DType::f32, 3}, {given.data(), DType::f32, 3}, counts)->wait();
  self->allReduce({given.data(), DType::f32, 3});
  self->broadcast({given.data(), DType::f32, 3}, 0);
  EXPECT_EQ(received, given);
  EXPECT_EQ(comm::allGatherTexts(*self, "mine"), std::vector<std::string>{"mine"});
}

TEST_F(SingleProcess, messagesToItselfArriveInOrder) {
  std::int32_t first = 1, second = 2, received = 0;
  self->send({&first, DType::i32, 1}, 0, 4);
  self->send({&second, DType::i32, 1}, 0, 4);
  self->receive({&received, DType::i32, 1}, 0, 4);
  EXPECT_EQ(received, 1);
  const std::unique_ptr<comm::Request> next = self->startReceive({&received, DType::i32, 1}, 0, 4);
  EXPECT_TRUE(next->test());
  EXPECT_EQ(received, 2);
  const std::unique_ptr<comm::Request> later = self->startReceive({&received, DType::i32, 1}, 0, 9);
  EXPECT_FALSE(later->test());
  self->startSend({&first, DType::i32, 1}, 0, 9)->wait();
  later->wait();
  EXPECT_EQ(received, 1);
}

TEST_F(SingleProcess, awaitingAMessageThatNobodySendsIsAnError) {
  std::int32_t received = 0;
  EXPECT_THROW(self->receive({&received, DType::i32, 1}, 0, 0), base::Error);
}

TEST_F(SingleProcess, agreementThrowsTheErrorItself) {
  try {
    comm::agreeOn(*self, [] { throw base::Error(base::ErrorKind::badData, "torn"); });
    FAIL() << "no error";
  } catch (const base::Error& error) {
    EXPECT_EQ(error.message(), "torn");
    EXPECT_EQ(error.kind(), base::ErrorKind::badData);
  }
}

}  // namespace
}  // namespace tandem::test
