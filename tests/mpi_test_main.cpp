#include <gtest/gtest.h>

#include <cstdio>

#include "common/comm/session.h"
#include "tests/mpi_test.h"

namespace tandem::test {
namespace {

comm::Communicator* group = nullptr;

// Rank 0 prints as GoogleTest always does; the others only what failed.
class FailuresOnly : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& test) override { test_ = &test; }
  void OnTestEnd(const testing::TestInfo&) override { test_ = nullptr; }
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "[rank %d] %s:%d: failure in %s.%s\n%s\n", world().rank(),
                 result.file_name() ? result.file_name() : "?", result.line_number(),
                 test_ ? test_->test_suite_name() : "?", test_ ? test_->name() : "?", result.message());
  }

  const testing::TestInfo* test_ = nullptr;  // GoogleTest must not be asked for it while it reports a failure
};

int runTests(comm::Communicator& all) {
  group = &all;
  comm::setWatchdogLimit(std::chrono::seconds(30));
  if (all.rank() != 0) {
    testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailuresOnly);
  }
  return RUN_ALL_TESTS();
}

}  // namespace

comm::Communicator& world() { return *group; }

}  // namespace tandem::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return tandem::comm::Session::run(argc, argv, &tandem::test::runTests);
}
