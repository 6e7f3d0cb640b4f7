#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <new>
#include <stdexcept>

#include "tests/mpi_test.h"

namespace tandem::test {
namespace {

using base::Error;
using base::ErrorKind;

// The error that agreeOn ends with on this rank.
std::optional<Error> outcome(comm::Communicator& group, const std::function<void()>& work) {
  try {
    comm::agreeOn(group, work);
    return std::nullopt;
  } catch (const Error& error) {
    return error;
  }
}

TEST(Agreement, isSilentWhenNoRankFails) {
  EXPECT_FALSE(outcome(world(), [] {}));
}

TEST(Agreement, givesEveryRankTheErrorOfTheLowestFailingRank) {
  const int first = world().size() / 2;  // this rank and all above it fail
  const std::optional<Error> error = outcome(world(), [&] {
    if (world().rank() >= first) throw Error(ErrorKind::badData, "seen by rank " + std::to_string(world().rank()));
  });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::badData);
  EXPECT_EQ(error->message(), "seen by rank " + std::to_string(first));
  EXPECT_NE(std::string(error->what()).find("[rank " + std::to_string(first) + " of"), std::string::npos)
      << error->what();
  EXPECT_TRUE(error->onEveryRank());
  EXPECT_EQ(comm::allReduceScalar(world(), std::int64_t{1}), world().size());  // and the ranks are in step
}

TEST(Agreement, keepsTheKindOfTheError) {
  for (const ErrorKind kind : {ErrorKind::usage, ErrorKind::file, ErrorKind::communication, ErrorKind::numeric}) {
    const std::optional<Error> error = outcome(world(), [&] {
      if (world().rank() == world().size() - 1) throw Error(kind, "");
    });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), kind);
    EXPECT_EQ(error->message(), "");
  }
}

TEST(Agreement, maybeNestedAndKeepsTheFirstWords) {
  std::string inner;
  const std::optional<Error> outer = outcome(world(), [&] {
    const std::optional<Error> error = outcome(world(), [] { throw Error(ErrorKind::file, "disk full"); });
    inner = error->what();
    throw *error;
  });
  ASSERT_TRUE(outer);
  EXPECT_EQ(outer->what(), inner);
}

TEST(Agreement, ofAPartOfTheRanksIsNotAnErrorOfAll) {
  const std::unique_ptr<comm::Communicator> alone = world().split(world().rank(), 0);
  const std::optional<Error> error = outcome(*alone, [] { throw Error(ErrorKind::file, "mine"); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->onEveryRank(), world().size() == 1);
}

TEST(Agreement, namesForeignExceptions) {
  const auto failure = [](const std::function<void()>& work) { return *outcome(world(), work); };
  const Error memory = failure([] { throw std::bad_alloc(); });
  EXPECT_EQ(memory.kind(), ErrorKind::device);
  EXPECT_NE(memory.message().find("out of memory"), std::string::npos);
  const Error file = failure([] { std::filesystem::create_directory("/proc/none/at/all"); });
  EXPECT_EQ(file.kind(), ErrorKind::file);
  EXPECT_NE(file.message().find("/proc/none/at/all"), std::string::npos);
  EXPECT_NE(failure([] { throw std::logic_error("odd"); }).message().find("odd"), std::string::npos);
  EXPECT_EQ(failure([] { throw 7; }).kind(), ErrorKind::device);
}

}  // namespace
}  // namespace tandem::test
