// The measurements of preflight: that each is taken, for every rank and every pair. How much they are is not tested.

#include "common/telemetry/preflight_probes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "kernels/backend.h"
#include "tests/common/data/temporary_folder.h"
#include "tests/mpi_test.h"

namespace tandem::telemetry {
namespace {

using test::world;

struct Processors {
  std::unique_ptr<kernels::Backend> backend = kernels::makeCpuBackend({.threads = 1});
  std::unique_ptr<kernels::Stream> stream = backend->makeStream();
};

TEST(Probes, everyPairMeetsOnceForEachSize) {
  Processors cpu;
  const LinkFacts facts = measureLinks(world(), nullptr, *cpu.backend, *cpu.stream, 1 << 17, 1 << 17);
  const int ranks = world().size();
  std::set<std::tuple<int, int, std::int64_t>> seen;
  for (const PairRate& pair : facts.pairs) {
    EXPECT_LT(pair.first, pair.second);
    EXPECT_GT(pair.seconds, 0);
    EXPECT_TRUE(seen.insert({pair.first, pair.second, pair.bytes}).second);
  }
  EXPECT_EQ(static_cast<int>(seen.size()), 3 * ranks * (ranks - 1) / 2);
  if (ranks == 1) {
    EXPECT_TRUE(facts.gathers.empty());
  } else {
    EXPECT_GT(facts.gathers.back().bytesPerSecond, 0);
    EXPECT_GT(facts.gathers.back().bytes, 1 << 16);
  }
}

TEST(Probes, clocksOfOneMachineAgree) { EXPECT_LT(std::abs(measureClockSkew(world())), 1); }

TEST(Probes, theLoadGivesEveryRateAndSaysWhatTheHostDidMeanwhile) {
  Processors cpu;
  HealthSampler sampler(nullptr, HostSensors(), std::chrono::milliseconds(20));
  RankFacts facts;
  measureCompute(world(), *cpu.backend, *cpu.stream, sampler, 0.05, facts);
  for (const char* name : {reading::matrixRate, reading::matrixRateHeld, reading::gemvBandwidth, reading::gemvToCopy,
                           reading::readBandwidth, reading::copyBandwidth, reading::attentionRate}) {
    ASSERT_TRUE(facts.get(name)) << name;
    EXPECT_GT(*facts.get(name), 0) << name;
  }
  EXPECT_FALSE(facts.get(reading::deviceClock));
  EXPECT_FALSE(facts.throttleReasons);
}

TEST(Probes, theDiskIsMeasuredWhereTheFolderWillBeAndNothingStays) {
  const data::TemporaryFolder folder;
  const DiskFacts facts = measureDisk(folder.path() / "not" / "yet", 8 << 20);
  EXPECT_GT(facts.freeBytes, 0);
  EXPECT_GT(facts.bytesPerSecond, 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Probes, theHashOfALargeFileTellsItsSizeAndItsBlocks) {
  const data::TemporaryFolder folder;
  const std::string content(3 << 20, 'x');
  const std::string same = hashOfContent(folder.write("a", content));
  EXPECT_EQ(hashOfContent(folder.write("b", content)), same);
  EXPECT_NE(hashOfContent(folder.write("c", content + "x")), same);
  std::string other = content;
  other[other.size() / 2] = 'y';
  EXPECT_NE(hashOfContent(folder.write("d", other)), same);
  EXPECT_EQ(hashOfContent(folder.write("e", "")), hashOfContent(folder.write("f", "")));
}

}  // namespace
}  // namespace tandem::telemetry
