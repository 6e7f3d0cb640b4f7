// What preflight says of units in each state that is known from the field. Rates are those that users have measured;
// clocks, power and heat come through an emulated NVML.

#include "common/telemetry/preflight.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "common/telemetry/health_sampler.h"
#include "tests/common/data/expect_error.h"
#include "tests/common/telemetry/emulated_device.h"

namespace tandem::telemetry {
namespace {

std::vector<DeviceLimits> knownLimits() {
  const char* root = std::getenv("TANDEM_SOURCE_DIR");
  return readDeviceLimits(std::filesystem::path(root != nullptr ? root : ".") / "data/devices");
}

const Check* find(const std::vector<Check>& checks, const std::string& subject, const std::string& place = "") {
  for (const Check& check : checks) {
    if (check.subject.starts_with(subject) && (place.empty() || check.place == place)) return &check;
  }
  return nullptr;
}

// Two DGX Sparks joined by a cable, healthy. Each test makes the second one ill.
class SparkPair : public testing::Test {
 protected:
  SparkPair() : device_(healthySpark) {
    for (int rank = 0; rank < 2; ++rank) evidence_.ranks.push_back(healthy(rank));
    evidence_.links = {.transport = "NCCL 2.31.2",
                       .isOfDevices = true,
                       .pairs = {{0, 1, 8, 20e-6}, {0, 1, 64 << 20, 64e6 / 20e9}},
                       .gathers = {{1 << 30, 23.4e9}}};
  }

  static RankFacts healthy(int rank) {
    RankFacts facts{.rank = rank, .host = rank == 0 ? "spark-a" : "spark-b", .sharesMemory = true};
    facts.versions = {{"Tandem", "0.1.0"}, {"NCCL", "2.31.2"},          {"MPI", "Open MPI 4.1.6"},
                      {"HDF5", "1.10.8"},  {"architecture", "aarch64"}, {"kernel", "6.14.0-1015-nvidia"}};
    facts.hashes = {{"preflight (aarch64)", "0123"}, {"train.h5", "4567"}};
    facts.readings = {{reading::matrixRate, 91.6e12},  {reading::matrixRateHeld, 0.99},
                      {reading::readBandwidth, 232e9}, {reading::copyBandwidth, 222e9},
                      {reading::gemvBandwidth, 226e9}, {reading::gemvToCopy, 226.0 / 222},
                      {reading::attentionRate, 88e12}, {reading::available, 110e9},
                      {reading::memoryTotal, 130.6e9}, {reading::swap, 0},
                      {reading::planned, 60e9},        {reading::plannedHost, 10e9},
                      {reading::diskFree, 900e9},      {reading::diskNeeded, 60e9},
                      {reading::diskRate, 5e9},        {reading::clockSkew, 0.001},
                      {reading::stolen, 0.0}};
    for (const char* name : {"enp1s0f1np1", "enP2p1s0f1np1"}) {
      facts.interfaces.push_back({.name = name, .isUp = true, .mtu = 9000, .megabitsPerSecond = 200000});
    }
    takeTelemetry(facts);
    return facts;
  }

  // As measureCompute does.
  static void takeTelemetry(RankFacts& facts) {
    OpenedSensors opened = EmulatedDevice::open();
    ASSERT_TRUE(opened.sensors) << opened.whyNot;
    facts.device = opened.sensors->identity().name;
    HealthSampler sampler(std::move(opened.sensors), HostSensors("/no/such/root"), std::chrono::hours(1));
    const HealthSummary health = sampler.sampleAndTake();
    for (const auto& [name, range] : {std::pair{reading::deviceClock, health.deviceClockMegahertz},
                                      {reading::devicePower, health.devicePowerWatts},
                                      {reading::deviceTemperature, health.deviceTemperatureCelsius},
                                      {reading::deviceUtilisation, health.deviceUtilisation}}) {
      facts.readings.erase(name);
      if (range) facts.set(name, range->mean);
    }
    facts.throttleReasons = health.throttleReasons;
  }

  void secondTells(std::initializer_list<std::pair<std::string, std::string>> changes) {
    std::string state = healthySpark;
    for (const auto& [name, value] : changes) state = EmulatedDevice::changed(state, name, value);
    device_.setState(state);
    takeTelemetry(second());
  }

  RankFacts& second() { return evidence_.ranks[1]; }
  std::vector<Check> judged() const { return judge(evidence_, knownLimits()); }

  void expectNoGo(const std::string& subject, const std::string& cause, const std::string& advice) const {
    const std::vector<Check> checks = judged();
    EXPECT_FALSE(isGo(checks));
    const Check* check = nullptr;
    for (const Check& one : checks) {
      if (one.subject.starts_with(subject) && one.verdict == Verdict::noGo) check = &one;
    }
    ASSERT_NE(check, nullptr) << preflightTable(checks, evidence_);
    EXPECT_NE((check->value + " " + check->limit).find(cause), std::string::npos) << check->value;
    EXPECT_NE(check->advice.find(advice), std::string::npos) << check->advice;
  }

  EmulatedDevice device_;
  Evidence evidence_;
};

TEST_F(SparkPair, healthyIsGo) {
  const std::vector<Check> checks = judged();
  EXPECT_TRUE(isGo(checks)) << preflightTable(checks, evidence_);
  EXPECT_TRUE(std::ranges::none_of(checks, [](const Check& check) { return check.verdict == Verdict::warning; }))
      << preflightTable(checks, evidence_);
}

TEST_F(SparkPair, aUnitHeldAtLowPowerIsNamedThoughItsUtilisationIsHigh) {
  secondTells({{"clock", "799"}, {"milliwatts", "19500"}});
  second().readings[reading::matrixRate] = 36.5e12;
  expectNoGo("condition of NVIDIA GB10", "held at low power without saying so: 799 MHz, 96.0 % utilised, 19.5 W",
             "unplug its supply from the wall and from the unit for 60 s");
  const std::vector<Check> checks = judged();
  EXPECT_EQ(find(checks, "condition of", "rank 1 (spark-b)")->verdict, Verdict::noGo);
  EXPECT_EQ(find(checks, "condition of", "rank 0 (spark-a)")->verdict, Verdict::go);
  EXPECT_EQ(find(checks, "matrix products beside", "rank 1 (spark-b)")->verdict, Verdict::noGo);
}

TEST_F(SparkPair, aLowClockOfAnIdleDeviceIsNoVerdict) {
  secondTells({{"clock", "799"}, {"milliwatts", "19500"}, {"utilisation", "40"}});
  const std::vector<Check> checks = judged();
  EXPECT_EQ(find(checks, "condition of", "rank 1 (spark-b)")->verdict, Verdict::unknown);
  EXPECT_EQ(find(checks, "clock under load", "rank 1 (spark-b)")->verdict, Verdict::unknown);
}

TEST_F(SparkPair, aHiddenSlowStateShowsInMatrixTimesVectorAtANormalClock) {
  second().readings[reading::gemvBandwidth] = 68e9;
  second().readings[reading::gemvToCopy] = 68.0 / 222;
  expectNoGo("condition of", "slow at reading matrices while its clock looks well: 2405 MHz", "restart the unit");
  secondTells({{"clock", ""}});
  expectNoGo("condition of", "slow at reading matrices, and its clock is not reported", "restart the unit");
}

TEST_F(SparkPair, heatIsNamedAsTheCauseOfALowClock) {
  secondTells({{"clock", "1380"}, {"temperature", "91"}, {"reasons", "32"}});
  expectNoGo("condition of", "slowed down by heat", "let air to the unit");
}

TEST_F(SparkPair, countersTellOfHeatThatNoSampleCaught) {
  second().readings[reading::thermalSlowdown] = 0.2;
  expectNoGo("condition of", "slowed down by heat", "let air to the unit");
}

TEST_F(SparkPair, aPowerBrakeIsNamedAsTheCauseOfALowClock) {
  secondTells({{"clock", "900"}, {"reasons", "128"}});
  expectNoGo("condition of", "slowed down for want of power", "supply");
}

TEST_F(SparkPair, slowProductsAtTheFullClockAreABuildForAnotherDevice) {
  second().readings[reading::matrixRate] = 20e12;
  expectNoGo("condition of", "slow at its full clock", "sm_121");
}

TEST_F(SparkPair, limitsFollowALockedClock) {
  secondTells({{"clock", "1990"}});
  second().readings[reading::matrixRate] = 75e12;
  evidence_.ranks[0] = second();
  evidence_.ranks[0].rank = 0;
  evidence_.ranks[0].host = "spark-a";
  EXPECT_EQ(find(judged(), "clock under load")->verdict, Verdict::warning);
  evidence_.lockedClockMegahertz = 2000;
  const std::vector<Check> checks = judged();
  EXPECT_EQ(find(checks, "clock under load")->verdict, Verdict::go);
  EXPECT_EQ(find(checks, "matrix products")->verdict, Verdict::go);
  second().readings[reading::deviceClock] = 1850;  // less than 95 % of what is set
  EXPECT_EQ(find(judged(), "clock under load", "rank 1 (spark-b)")->verdict, Verdict::warning);
}

TEST_F(SparkPair, aRateThatSagsUnderALastingLoadIsAWarning) {
  second().readings[reading::matrixRateHeld] = 0.85;
  const std::vector<Check> checks = judged();
  EXPECT_TRUE(isGo(checks));
  EXPECT_EQ(find(checks, "rate at the end of the load", "rank 0 (spark-a)")->verdict, Verdict::go);
  EXPECT_EQ(find(checks, "rate at the end of the load", "rank 1 (spark-b)")->verdict, Verdict::warning);
}

TEST_F(SparkPair, halfALinkIsANoGo) {
  second().interfaces[1].isUp = false;
  expectNoGo("parts of the link", "enP2p1s0f* down", "subnet of its own");
}

TEST_F(SparkPair, theRateOfHalfALinkIsANoGoEvenWhereBothLookUp) {
  evidence_.links.gathers = {{1 << 30, 12.2e9}};
  expectNoGo("all-gather", "12.2 GB/s", "one half of the port");
}

TEST_F(SparkPair, anExchangeOverAnotherNetworkIsANoGoAndOneOfSmallPacketsAWarning) {
  evidence_.links.gathers = {{1 << 30, 3e9}};
  expectNoGo("all-gather", "3.0 GB/s", "NCCL took another network");
  evidence_.links.gathers = {{1 << 30, 18.9e9}};
  EXPECT_TRUE(isGo(judged()));
  EXPECT_EQ(find(judged(), "all-gather")->verdict, Verdict::warning);
  EXPECT_NE(find(judged(), "all-gather")->advice.find("MTU"), std::string::npos);
}

TEST_F(SparkPair, differentMtusAreANoGo) {
  second().interfaces[0].mtu = 1500;
  expectNoGo("MTU of enp1s0f1np1", "1500 on spark-b; 9000 on spark-a", "one MTU on both ends");
}

TEST_F(SparkPair, aSmallMtuOnBothEndsIsAWarning) {
  for (RankFacts& rank : evidence_.ranks) {
    for (NetworkInterface& one : rank.interfaces) one.mtu = 1500;
  }
  const std::vector<Check> checks = judged();
  EXPECT_TRUE(isGo(checks));
  EXPECT_EQ(find(checks, "MTU of enp1s0f1np1")->verdict, Verdict::warning);
}

TEST_F(SparkPair, memoryThatThePlanAndTheReserveDoNotFitInIsANoGo) {
  second().readings[reading::available] = 80e9;  // 70 planned and 16 to spare
  expectNoGo("memory of the host", "planned", "--micro-batch");
}

TEST_F(SparkPair, swapIsAWarning) {
  second().readings[reading::swap] = 16e9;
  EXPECT_EQ(find(judged(), "swap", "spark-b")->verdict, Verdict::warning);
}

TEST_F(SparkPair, anNcclThatDeadlocksIsANoGoOnArmOnly) {
  for (RankFacts& rank : evidence_.ranks) rank.versions["NCCL"] = "2.28.9";
  expectNoGo("NCCL version", "2.28.9 on aarch64", "2.29.3");
  for (const char* version : {"2.29.1", "2.29.2"}) {
    second().versions["NCCL"] = version;
    EXPECT_NE(find(judged(), "NCCL version", "spark-b"), nullptr) << version;
  }
  for (const char* version : {"2.28.3", "2.30.7"}) {
    for (RankFacts& rank : evidence_.ranks) rank.versions["NCCL"] = version;
    EXPECT_TRUE(isGo(judged())) << version;
    EXPECT_EQ(find(judged(), "NCCL version", "spark-b")->verdict, Verdict::warning) << version;
  }
  for (RankFacts& rank : evidence_.ranks) rank.versions["NCCL"] = "2.29.3";
  EXPECT_TRUE(isGo(judged()));
  EXPECT_EQ(find(judged(), "NCCL version"), nullptr);
  for (RankFacts& rank : evidence_.ranks) rank.versions["NCCL"] = "2.28.9";
  for (RankFacts& rank : evidence_.ranks) rank.versions["architecture"] = "x86_64";
  EXPECT_TRUE(isGo(judged()));
}

TEST_F(SparkPair, differentLibrariesAreANoGoAndDifferentKernelsAWarning) {
  second().versions["kernel"] = "6.11.0";
  EXPECT_EQ(find(judged(), "kernel")->verdict, Verdict::warning);
  EXPECT_TRUE(isGo(judged()));
  second().versions["MPI"] = "Open MPI 5.0.3";
  expectNoGo("MPI", "Open MPI 5.0.3 on spark-b", "install the same MPI");
}

TEST_F(SparkPair, differentPathsOfAttentionAreAWarning) {
  for (RankFacts& rank : evidence_.ranks) rank.versions["attention"] = "Attention by cuDNN 9.14";
  EXPECT_EQ(find(judged(), "attention", "all nodes")->verdict, Verdict::go);
  second().versions["attention"] = "Attention by own kernels";
  EXPECT_EQ(find(judged(), "attention", "all nodes")->verdict, Verdict::warning);
}

TEST_F(SparkPair, anotherDatasetUnderTheSameNameIsANoGo) {
  second().hashes["train.h5"] = "89ab";
  expectNoGo("content of train.h5", "89ab on spark-b", "copy the same file");
}

TEST_F(SparkPair, aFullDiskIsANoGo) {
  second().readings[reading::diskFree] = 10e9;
  expectNoGo("checkpoint folder", "free", "--keep");
}

TEST_F(SparkPair, clocksApartAreAWarningAndFarApartANoGo) {
  second().readings[reading::clockSkew] = -3;
  EXPECT_EQ(find(judged(), "clock against rank 0", "spark-b")->verdict, Verdict::warning);
  second().readings[reading::clockSkew] = 4000;
  expectNoGo("clock against rank 0", "ms", "chrony");
}

TEST_F(SparkPair, whatIsNotReportedIsUnknownAndNoVerdict) {
  secondTells({{"clock", ""}, {"milliwatts", ""}, {"temperature", ""}, {"utilisation", ""}, {"reasons", ""}});
  const std::vector<Check> checks = judged();
  EXPECT_TRUE(isGo(checks)) << preflightTable(checks, evidence_);
  for (const char* subject : {"clock under load", "power under load", "temperature under load"}) {
    const Check* check = find(checks, subject, "rank 1 (spark-b)");
    EXPECT_EQ(check->verdict, Verdict::unknown) << subject;
    EXPECT_EQ(check->value, "not reported") << subject;
  }
}

TEST_F(SparkPair, aSlowUnitWhoseClockIsNotReportedIsStillANoGo) {
  secondTells({{"clock", ""}, {"milliwatts", ""}});
  second().readings[reading::matrixRate] = 36.5e12;
  expectNoGo("condition of", "slow, and its clock is not reported", "clock and power");
}

TEST_F(SparkPair, aTrialWithoutFiniteLossesIsANoGo) {
  evidence_.trial = TrialFacts{.steps = 20, .stepsOfTheRun = 1000, .finite = false, .stepSeconds = 1};
  expectNoGo("trial of the run", "20 steps", "--learning-rate");
}

TEST_F(SparkPair, sharesOfTinyStepsOfATrialAreNoWarning) {
  evidence_.trial = TrialFacts{.steps = 20,
                               .stepsOfTheRun = 1000,
                               .stepSeconds = 2,
                               .waitShare = 0.2,
                               .communicationShare = 0.4,
                               .dataShare = 0.12};
  const auto warnings = [&] {
    return std::ranges::count(judged(), Verdict::warning, [](const Check& check) { return check.verdict; });
  };
  EXPECT_EQ(warnings(), 3);
  evidence_.trial->stepSeconds = 0.0025;
  EXPECT_EQ(warnings(), 0);
}

TEST_F(SparkPair, theReportsHoldTheVerdictTheAdviceAndTheFacts) {
  secondTells({{"clock", "799"}, {"milliwatts", "19500"}});
  evidence_.trial =
      TrialFacts{.steps = 20, .stepsOfTheRun = 36000, .stepSeconds = 2, .checkpointSeconds = 1, .joules = 300};
  const std::vector<Check> checks = judged();
  const std::string table = preflightTable(checks, evidence_);
  EXPECT_NE(table.find("unplug its supply"), std::string::npos) << table;
  EXPECT_NE(table.find("36000 steps in 20h"), std::string::npos) << table;
  EXPECT_NE(table.find("3.00 kWh"), std::string::npos) << table;
  evidence_.trial->joules.reset();
  EXPECT_NE(preflightTable(checks, evidence_).find("energy is not known"), std::string::npos);
  EXPECT_TRUE(table.ends_with("\nno-go\n")) << table;
  const auto json = nlohmann::json::parse(preflightJson(checks, evidence_));
  EXPECT_EQ(json.at("go"), false);
  EXPECT_EQ(json.at("checks").size(), checks.size());
  EXPECT_EQ(json.at("ranks").at(1).at("readings").at("device_clock"), 799);
  EXPECT_EQ(json.at("trial").at("projected_seconds"), 72000);
}

// Ranks of a device that no file names: only against one another.
class Cluster : public testing::Test {
 protected:
  void take(std::vector<double> rates) {
    for (const double rate : rates) {
      RankFacts facts{.rank = static_cast<int>(evidence_.ranks.size())};
      facts.host = "node-" + std::to_string(facts.rank);
      facts.readings = {{reading::matrixRate, rate}};
      evidence_.ranks.push_back(facts);
    }
  }
  std::vector<Check> judged() const { return judge(evidence_, knownLimits()); }
  Evidence evidence_;
};

TEST_F(Cluster, unknownDevicesAreJudgedByComparisonAndThatIsSaid) {
  take({1e12, 0.99e12, 1.01e12, 0.6e12});
  const std::vector<Check> checks = judged();
  EXPECT_NE(find(checks, "limits of these processors")->limit.find("comparison with the other ranks only"),
            std::string::npos);
  EXPECT_EQ(find(checks, "matrix products beside", "rank 3 (node-3)")->verdict, Verdict::noGo);
  EXPECT_EQ(find(checks, "matrix products beside", "rank 0 (node-0)"), nullptr);
  EXPECT_FALSE(isGo(checks));
}

TEST_F(Cluster, ranksThatAreAllDifferentHaveNoOutlier) {
  take({1e12, 0.8e12, 0.6e12, 1.2e12, 1.4e12});
  EXPECT_TRUE(isGo(judged()));
}

TEST_F(Cluster, oneRankAloneHasNobodyToBeComparedWith) {
  take({1e12});
  EXPECT_TRUE(isGo(judged()));
}

TEST_F(Cluster, differentDevicesAreNotCompared) {
  take({1e12, 0.2e12});
  evidence_.ranks[1].device = "another";
  EXPECT_TRUE(isGo(judged()));
}

TEST_F(Cluster, aLowClockOfProcessorsIsAWarning) {
  take({1e12, 1e12});
  evidence_.ranks[0].readings[reading::hostClock] = 3000;
  evidence_.ranks[1].readings[reading::hostClock] = 1200;
  const std::vector<Check> checks = judged();
  EXPECT_TRUE(isGo(checks));
  EXPECT_EQ(find(checks, "clock of the processors beside", "rank 1 (node-1)")->verdict, Verdict::warning);
  EXPECT_NE(find(checks, "limits of these processors")->value.find("clock under load 3000 MHz"), std::string::npos);
}

TEST_F(Cluster, stolenTimeIsToldAndMuchOfItIsANoGo) {
  take({1e12, 1e12});
  evidence_.ranks[0].readings[reading::stolen] = 0.1;
  EXPECT_EQ(find(judged(), "time stolen", "node-0")->verdict, Verdict::warning);
  evidence_.ranks[0].readings[reading::stolen] = 0.5;
  EXPECT_FALSE(isGo(judged()));
}

TEST_F(Cluster, aSlowPairAmongOthersIsANoGo) {
  take({1e12, 1e12, 1e12});
  evidence_.links.pairs = {{0, 1, 1 << 20, 1e-4}, {0, 2, 1 << 20, 1e-4}, {1, 2, 1 << 20, 1e-3}};
  const std::vector<Check> checks = judged();
  EXPECT_EQ(find(checks, "messages between pairs")->verdict, Verdict::noGo);
  EXPECT_NE(find(checks, "messages between pairs")->value.find("between rank 1 (node-1) and rank 2 (node-2)"),
            std::string::npos);
}

TEST(PreflightFacts, readBackExactly) {
  RankFacts facts{.rank = 3, .host = "h", .device = "d", .processor = "p", .sharesMemory = false, .whyNoSensors = "w"};
  facts.versions = {{"MPI", "4"}};
  facts.hashes = {{"f", "0"}};
  facts.readings = {{reading::matrixRate, 0.1}};
  facts.throttleReasons = 0x80;
  facts.interfaces = {{.name = "eth0", .isUp = true, .mtu = 1500, .megabitsPerSecond = std::nullopt}};
  const RankFacts again = parseRankFacts(toJson(facts));
  EXPECT_EQ(toJson(again), toJson(facts));
  EXPECT_EQ(again.readings, facts.readings);
  EXPECT_EQ(again.throttleReasons, facts.throttleReasons);
  EXPECT_FALSE(again.interfaces.at(0).megabitsPerSecond);
}

TEST(DeviceLimits, aFileThatIsNoneIsRefusedWithItsName) {
  using data::expectError;
  expectError(base::ErrorKind::badData, {"x.json"}, [] { parseDeviceLimits("{", "x.json"); });
  expectError(base::ErrorKind::badData, {"x.json", "names"}, [] { parseDeviceLimits("{}", "x.json"); });
  expectError(base::ErrorKind::badData, {"x.json", "fail"},
              [] { parseDeviceLimits(R"({"names": ["A"], "limits": {"b": {"pass": 1}}})", "x.json"); });
}

TEST(DeviceLimits, belongToDevicesWhoseNameHoldsOneOfTheirs) {
  const std::vector<DeviceLimits> all = knownLimits();
  ASSERT_NE(limitsOf(all, "NVIDIA GB10"), nullptr);
  EXPECT_TRUE(limitsOf(all, "NVIDIA GB10")->hasUnifiedMemory);
  EXPECT_EQ(limitsOf(all, "NVIDIA H200")->peakFlops.at("bf16"), 989.4e12);
  EXPECT_EQ(limitsOf(all, "Abacus"), nullptr);
}

}  // namespace
}  // namespace tandem::telemetry
