// How jobs end: each test starts session_endings under mpirun, and looks at the exit code and at what was written.

#include <gtest/gtest.h>

#include "tests/run_program.h"

namespace tandem::test {
namespace {

Ended endings(int ranks, const std::string& way, const std::string& environment = "") {
  return runRanks(ranks, neighbour("session_endings") + " " + way, environment);
}

TEST(Session, endsWithZeroAfterSuccess) {
  const Ended ended = endings(3, "success");
  EXPECT_EQ(ended.exitCode, 0) << ended.errors;
  EXPECT_EQ(countOf(ended.output, "of 3 on this host 3"), 3) << ended.output;
}

TEST(Session, runsAloneAsOneRank) {
  const Ended ended = runCommand(neighbour("session_endings") + " success");
  EXPECT_EQ(ended.exitCode, 0) << ended.errors;
  EXPECT_EQ(ended.output, "rank 0 of 1 on this host 1\n");
  const Ended failed = runCommand(neighbour("session_endings") + " alone");
  EXPECT_EQ(failed.exitCode, 3);
  EXPECT_EQ(countOf(failed.errors, "bad data: only I saw it"), 1) << failed.errors;
}

TEST(Session, alonePassesNothingOnAndLeavesWhatItsCallerHasSet) {
  const std::string program = neighbour("session_endings") + " surroundings";
  const std::string bare = "env -u OMPI_MCA_ess_singleton_isolated -u OMPI_MCA_pml -u OMPI_MCA_btl ";
  EXPECT_EQ(runCommand(bare + program).output, "") << "no daemon, no settings";
  EXPECT_EQ(runCommand(bare + "OMPI_MCA_btl=self,tcp " + program).output, "OMPI_MCA_btl=self,tcp\n");
}

TEST(Session, allRanksReturnTheSameCode) { EXPECT_EQ(endings(3, "different-codes").exitCode, 75); }

TEST(Session, anAgreedErrorIsReportedOnceByRankZeroAndNamesTheFailingRank) {
  for (const char* way : {"agreed", "agreed-then-slow-clean-up"}) {
    const Ended ended = endings(3, way);
    EXPECT_EQ(ended.exitCode, 3) << ended.errors;
    EXPECT_EQ(countOf(ended.errors, "line 7 is damaged"), 1) << ended.errors;
    EXPECT_EQ(countOf(ended.errors, "error [0]"), 1) << ended.errors;
    EXPECT_EQ(countOf(ended.errors, "MPI_ABORT"), 0) << ended.errors;
  }
  EXPECT_EQ(countOf(endings(3, "agreed").errors, "[rank 2 of 3"), 1);
}

TEST(Session, anErrorAlikeOnAllRanksIsReportedOnce) {
  const Ended ended = endings(3, "alike");
  EXPECT_EQ(ended.exitCode, 2) << ended.errors;
  EXPECT_EQ(countOf(ended.errors, "the batch is not divisible"), 1) << ended.errors;
}

TEST(Session, aRankThatFailsAloneEndsTheJobWithItsCodeAndMessage) {
  const Ended ended = endings(3, "alone");
  EXPECT_EQ(ended.exitCode, 3) << ended.errors;
  EXPECT_EQ(countOf(ended.errors, "bad data: only I saw it [rank 2 of 3"), 1) << ended.errors;
}

TEST(Session, aRankThatFailsAfterTheLastCollectiveDecidesTheCodeToo) {
  const Ended ended = endings(3, "alone-at-the-end");
  EXPECT_EQ(ended.exitCode, 3) << ended.errors;
  EXPECT_EQ(countOf(ended.errors, "only I saw it"), 1) << ended.errors;
}

TEST(Session, exhaustedMemorySaysSo) {
  const Ended ended = endings(2, "out-of-memory");
  EXPECT_EQ(ended.exitCode, 1) << ended.errors;
  EXPECT_EQ(countOf(ended.errors, "device error: out of memory"), 1) << ended.errors;
}

TEST(Session, foreignExceptionsEndWithOne) {
  const Ended ended = endings(2, "foreign-exception");
  EXPECT_EQ(ended.exitCode, 1) << ended.errors;
  EXPECT_EQ(countOf(ended.errors, "thrown by a library"), 1) << ended.errors;
}

TEST(Watchdog, endsAStuckCollectiveAndTellsWhereEveryRankIs) {
  const Ended ended = endings(3, "stuck", "TANDEM_WATCHDOG=1s");
  EXPECT_EQ(ended.exitCode, 1) << ended.errors;
  EXPECT_EQ(countOf(ended.errors, "watchdog: rank 0 of 3 on "), 1) << ended.errors;
  EXPECT_EQ(countOf(ended.errors, "watchdog: rank 1 of 3 on "), 1) << ended.errors;
  EXPECT_EQ(countOf(ended.errors, ": all-reduce of 8 B has been waiting for "), 2) << ended.errors;
  EXPECT_EQ(countOf(ended.errors, "watchdog: rank 2 of 3 on "), 1) << ended.errors;
  EXPECT_EQ(countOf(ended.errors, ": in no collective for "), 1) << ended.errors;
  EXPECT_EQ(countOf(ended.errors, "the last one was: barrier"), 1) << ended.errors;
  EXPECT_GE(countOf(ended.errors, "the job is aborted"), 1) << ended.errors;
}

TEST(Watchdog, letsACollectiveGoOnThatEndsWithinTheGrace) {
  const Ended ended = endings(2, "slow", "TANDEM_WATCHDOG=1s");
  EXPECT_EQ(ended.exitCode, 0) << ended.errors;
}

TEST(Watchdog, isOffWithALimitOfZero) {
  const Ended ended = endings(2, "slow", "TANDEM_WATCHDOG=0");
  EXPECT_EQ(ended.exitCode, 0) << ended.errors;
  EXPECT_EQ(countOf(ended.errors, "watchdog"), 0) << ended.errors;
}

TEST(Watchdog, aLimitThatIsNoDurationIsAUsageError) {
  const Ended ended = endings(2, "success", "TANDEM_WATCHDOG=soon");
  EXPECT_EQ(ended.exitCode, 2) << ended.errors;
  EXPECT_EQ(countOf(ended.errors, "'soon' is no duration"), 1) << ended.errors;
  EXPECT_EQ(ended.output, "");
}

}  // namespace
}  // namespace tandem::test
