#include <gtest/gtest.h>

#include "tests/run_program.h"

namespace tandem::test {
namespace {

std::string example(const std::string& arguments) { return neighbour("example_app") + " " + arguments; }

TEST(Program, runsTheCommandOnEveryRankAndReturnsItsCode) {
  const Ended ended = runRanks(2, example("check"));
  EXPECT_EQ(ended.exitCode, 4) << ended.errors;
  EXPECT_EQ(runCommand(example("count --input a")).exitCode, 0);
}

TEST(Program, reportsAUsageErrorOnceAndEndsWithTwoOnAllRanks) {
  const Ended ended = runRanks(3, example("count --input a --stpes 4"));
  EXPECT_EQ(ended.exitCode, 2) << ended.errors;
  EXPECT_EQ(countOf(ended.errors, "did you mean '--steps'?"), 1) << ended.errors;
  EXPECT_EQ(ended.output, "");
  const Ended missing = runRanks(2, example("check --path /no/such/file"));
  EXPECT_EQ(missing.exitCode, 2) << missing.errors;
  EXPECT_EQ(countOf(missing.errors, "/no/such/file"), 1) << missing.errors;
}

TEST(Program, printsHelpAndVersionOnceAndEndsWithZero) {
  for (const char* arguments : {"--help", "count --help", "--version", "count --version"}) {
    const Ended ended = runRanks(2, example(arguments));
    EXPECT_EQ(ended.exitCode, 0) << ended.errors;
    // Not that stderr is empty: libraries write there where a machine lacks something (hwloc without /sys).
    EXPECT_EQ(countOf(ended.errors, "Usage:") + countOf(ended.errors, "Open MPI"), 0) << ended.errors;
    EXPECT_EQ(countOf(ended.output, "Usage:") + countOf(ended.output, "Open MPI"), 1) << ended.output;
  }
}

TEST(Program, printsOneJsonDocumentOnStdoutAndTheLogOnStderr) {
  const Ended ended = runRanks(2, example("count --input a --json --log-level debug"));
  EXPECT_EQ(ended.exitCode, 0);
  EXPECT_EQ(ended.output, "{\"steps\":100}\n");
  EXPECT_EQ(countOf(ended.errors, "debug [0] counting"), 1) << ended.errors;
}

TEST(Program, setsTheThreadsOfARank) {
  EXPECT_EQ(countOf(runCommand(example("count --input a --threads 3")).output, "threads 3 "), 1);
  EXPECT_EQ(countOf(runCommand("OMP_NUM_THREADS=5 " + example("count --input a")).output, "threads 5 "), 1);
  const Ended many = runRanks(4, "env -u OMP_NUM_THREADS taskset -c 0 " + example("count --input a"));
  EXPECT_EQ(countOf(many.output, "threads 1 "), 1) << many.output << many.errors;  // four ranks share one core
}

TEST(Program, aFullDiskBehindStdoutIsAnError) {
  const Ended ended = runCommand(example("count --input a >/dev/full"));
  EXPECT_EQ(ended.exitCode, 1);
  EXPECT_EQ(countOf(ended.errors, "cannot write to standard output"), 1) << ended.errors;
}

}  // namespace
}  // namespace tandem::test
