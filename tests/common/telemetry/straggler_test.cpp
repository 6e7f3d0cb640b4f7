// Who is named as holding a run up, and who is not.

#include "common/telemetry/straggler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "common/telemetry/device_sensors.h"

namespace tandem::telemetry {
namespace {

constexpr double gigabyte = 1e9;

// Steps of ranks on hosts "spark-a", "spark-b", ..., each computing for so long (100 ms) with a spread, waiting for the
// slowest, exchanging for a tenth of that. A test changes what a rank reports before the others wait for it.
class TrainingRun {
 public:
  explicit TrainingRun(int ranks, double exchangedBytes = gigabyte, double computeSeconds = 0.1)
      : watch_(hosts(ranks), exchangedBytes), ranks_(ranks), computeSeconds_(computeSeconds) {}

  using Change = std::function<void(std::vector<RankReport>&)>;
  // The first finding, and the step that brought it.
  std::optional<Straggler> steps(int count, const Change& change = {}) {
    std::optional<Straggler> first;
    for (int step = 1; step <= count; ++step) {
      const std::optional<Straggler> found = watch_.add(oneStep(change));
      findings += found ? 1 : 0;
      if (found && !first) {
        first = found;
        stepOfFirst = step;
      }
    }
    return first;
  }

  int findings = 0;
  int stepOfFirst = 0;

 private:
  static std::vector<std::string> hosts(int ranks) {
    std::vector<std::string> names;
    for (int rank = 0; rank < ranks; ++rank) names.push_back(std::string("spark-") + static_cast<char>('a' + rank));
    return names;
  }

  std::vector<RankReport> oneStep(const Change& change) {
    std::normal_distribution<double> spread(computeSeconds_, 0.04 * computeSeconds_);
    std::vector<RankReport> reports(static_cast<std::size_t>(ranks_));
    for (RankReport& report : reports) {
      report.computeSeconds = spread(random_);
      report.communicationSeconds = 0.1 * computeSeconds_;
      report.dataSeconds = 1e-3 * computeSeconds_;
    }
    if (change) change(reports);
    double end = 0;
    for (const RankReport& report : reports) {
      end = std::max(end, report.computeSeconds + report.dataSeconds + report.communicationSeconds);
    }
    for (RankReport& report : reports) {
      report.stepSeconds = end;
      report.communicationSeconds = end - report.computeSeconds - report.dataSeconds;
    }
    return reports;
  }

  StragglerWatch watch_;
  int ranks_;
  double computeSeconds_;
  std::mt19937 random_{7};
};

void slowSecond(std::vector<RankReport>& reports) {
  reports[1].computeSeconds /= 0.41;
  reports[0].clockMegahertz = 2400;
  reports[1].clockMegahertz = 799;
  reports[1].powerWatts = 19.5;
}

TEST(Straggler, aSlowDeviceIsNamedWithItsHostAndItsCostWithinTwentySteps) {
  TrainingRun run(2, gigabyte);
  const auto found = run.steps(20, slowSecond);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->cause, Holdup::device);
  EXPECT_EQ(found->rank, 1);
  EXPECT_NEAR(found->pace, 0.41, 0.02);
  EXPECT_NE(found->text.find("rank 1 on spark-b computes at 0.4"), std::string::npos) << found->text;
  EXPECT_NE(found->text.find("(799 MHz, 19.5 W)"), std::string::npos) << found->text;
  EXPECT_NE(found->text.find("the job runs at 0.4"), std::string::npos) << found->text;
  EXPECT_NE(found->text.find("without it 1."), std::string::npos) << found->text;
}

TEST(Straggler, theCostIsThatOfTheSlowestRankOnAll) {
  // Computing is all of a step: at 0.41 x the job runs at 0.41 x, and one rank alone would do 1 / (2 * 0.41) = 1.22.
  StragglerWatch watch({"spark-a", "spark-b"}, gigabyte);
  std::optional<Straggler> found;
  for (int step = 0; step < 20 && !found; ++step) {
    found = watch.add({{.stepSeconds = 1, .computeSeconds = 0.41}, {.stepSeconds = 1, .computeSeconds = 1}});
  }
  ASSERT_TRUE(found);
  EXPECT_EQ(found->text, "rank 1 on spark-b computes at 0.41 x; the job runs at 0.41 x; without it 1.22 x faster");
}

TEST(Straggler, ofManyRanksASlightlySlowOneIsBetterKept) {
  TrainingRun run(8);
  const auto found = run.steps(20, [](auto& reports) { reports[5].computeSeconds *= 1.3; });
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 5);
  EXPECT_NE(found->text.find("without it 1.1"), std::string::npos) << found->text;  // 7 / (8 * 0.78)
  TrainingRun smaller(8);
  const auto kept = smaller.steps(20, [](auto& reports) { reports[5].computeSeconds *= 1.2; });
  if (kept) {
    EXPECT_EQ(kept->text.find("without it 0"), std::string::npos) << kept->text;
  }
}

TEST(Straggler, heatOnOneDeviceIsItsOwnAndNotABusyHosts) {
  TrainingRun run(2);
  const auto found = run.steps(20, [](auto& reports) {
    slowSecond(reports);
    reports[1].throttleReasons = throttle::softwareThermal;
    reports[1].busyShare = 0.9;
    reports[1].ownShare = 0.1;
  });
  ASSERT_TRUE(found);
  EXPECT_EQ(found->cause, Holdup::device);
  EXPECT_NE(found->text.find("software thermal slowdown"), std::string::npos) << found->text;
}

TEST(Straggler, aBusyHostIsToldFromASlowDevice) {
  TrainingRun run(2);
  const auto found = run.steps(20, [](auto& reports) {
    reports[1].computeSeconds *= 2;
    reports[1].busyShare = 0.9;
    reports[1].ownShare = 0.4;
  });
  ASSERT_TRUE(found);
  EXPECT_EQ(found->cause, Holdup::host);
  EXPECT_NE(found->text.find("its host is busy, 50 % of its processors run other programs"), std::string::npos)
      << found->text;
}

TEST(Straggler, timeStolenByOtherGuestsMakesAHostBusy) {
  TrainingRun run(2);
  const auto found = run.steps(20, [](auto& reports) {
    reports[0].computeSeconds *= 1.5;
    reports[0].stolenShare = 0.3;
  });
  ASSERT_TRUE(found);
  EXPECT_EQ(found->cause, Holdup::host);
  EXPECT_EQ(found->rank, 0);
  EXPECT_NE(found->text.find("30 % of its time goes to other guests"), std::string::npos) << found->text;
}

TEST(Straggler, slowDataIsNamed) {
  TrainingRun run(3);
  const auto found = run.steps(20, [](auto& reports) { reports[2].dataSeconds = 0.08; });
  ASSERT_TRUE(found);
  EXPECT_EQ(found->cause, Holdup::data);
  EXPECT_EQ(found->rank, 2);
  EXPECT_NE(found->text.find("rank 2 on spark-c waits 4"), std::string::npos) << found->text;
}

TEST(Straggler, aSlowNetworkIsNobodysFault) {
  TrainingRun run(2, 25e6);  // over 100 Mbit/s that is two seconds
  const auto found = run.steps(20, [](auto& reports) {
    for (RankReport& report : reports) report.communicationSeconds = 2;
  });
  ASSERT_TRUE(found);
  EXPECT_EQ(found->cause, Holdup::network);
  EXPECT_EQ(found->rank, -1);
  EXPECT_NE(found->text.find("12.5 MB/s"), std::string::npos) << found->text;
}

TEST(Straggler, littleExchangedSlowlySaysNothingOfTheNetwork) {
  TrainingRun run(2, 1e5);
  EXPECT_FALSE(run.steps(100, [](auto& reports) {
    for (RankReport& report : reports) report.communicationSeconds = 2;
  }));
}

TEST(Straggler, waitingForASlowRankIsNotTakenForASlowNetwork) {
  TrainingRun run(2, 25e6);
  const auto found = run.steps(20, [](auto& reports) { reports[1].computeSeconds *= 20; });
  ASSERT_TRUE(found);
  EXPECT_EQ(found->cause, Holdup::device);
}

TEST(Straggler, aHealthyRunRaisesNoAlarmInAThousandSteps) {
  TrainingRun run(4);
  EXPECT_FALSE(run.steps(1000));
  std::mt19937 random(3);
  TrainingRun hiccups(4);  // now and then some rank takes three times as long
  EXPECT_FALSE(hiccups.steps(1000, [&](auto& reports) {
    if (random() % 10 == 0) reports[random() % 4].computeSeconds *= 3;
  }));
}

// Noise as machines have it: a step in ten is late on some rank by a random factor (another program, a slow page of
// data), the pace of all drifts together, and each rank differs a little from the others for good.
TEST(Straggler, noHealthyRunOfManyRaisesAnAlarmInAThousandSteps) {
  for (const int ranks : {2, 3, 4, 8}) {
    for (const unsigned seed : {1u, 2u, 3u}) {
      std::mt19937 random(seed);
      std::exponential_distribution<double> lateness(2.0);
      std::uniform_real_distribution<double> own(0.98, 1.02);
      std::vector<double> pace(static_cast<std::size_t>(ranks));
      for (double& one : pace) one = own(random);
      int step = 0;
      TrainingRun run(ranks);
      const auto found = run.steps(1000, [&](auto& reports) {
        const double drift = 1 + 0.3 * std::sin(++step * 0.01);
        for (std::size_t rank = 0; rank < reports.size(); ++rank) {
          reports[rank].computeSeconds *= drift * pace[rank];
          if (random() % 10 == 0) reports[rank].computeSeconds *= 1 + lateness(random);
          if (random() % 20 == 0) reports[rank].dataSeconds += 0.1 * lateness(random);
          reports[rank].communicationSeconds *= 1 + lateness(random);
        }
      });
      EXPECT_FALSE(found) << ranks << " ranks, seed " << seed << ", step " << run.stepOfFirst << ": " << found->text;
    }
  }
}

// A thread that wakes up a little later than the other rank's, or shares its core, in every step: of tiny steps that is
// a large share, and of long ones the same share is an alarm.
TEST(Straggler, sharesOfTinyStepsAreNoAlarm) {
  constexpr double tiny = 0.0025, large = 0.25;
  for (const double seconds : {tiny, large}) {
    std::mt19937 random(11);
    std::exponential_distribution<double> late(10.0);
    TrainingRun reading(2, gigabyte, seconds), computing(2, gigabyte, seconds);
    const auto slowData =
        reading.steps(1000, [&](auto& reports) { reports[1].dataSeconds = seconds * (0.15 + late(random)); });
    const auto slowComputing =
        computing.steps(1000, [&](auto& reports) { reports[1].computeSeconds *= 1.25 + late(random); });
    EXPECT_EQ(slowData.has_value(), seconds == large) << (slowData ? slowData->text : "");
    EXPECT_EQ(slowComputing.has_value(), seconds == large) << (slowComputing ? slowComputing->text : "");
  }
}

TEST(Straggler, aRankThatIsSlowInHalfOfItsStepsIsNotNamedYet) {
  TrainingRun run(2);
  int step = 0;
  EXPECT_FALSE(run.steps(100, [&](auto& reports) {
    if (++step % 7 < 4) reports[1].computeSeconds *= 2;
  }));
}

TEST(Straggler, isToldOnceAndAgainWhenItComesBack) {
  TrainingRun run(2);
  run.steps(200, slowSecond);
  EXPECT_EQ(run.findings, 1);
  run.steps(100);
  EXPECT_EQ(run.findings, 1);
  run.steps(100, slowSecond);
  EXPECT_EQ(run.findings, 2);
}

TEST(Straggler, aRankAloneHoldsNobodyUp) {
  TrainingRun run(1);
  EXPECT_FALSE(run.steps(50, [](auto& reports) { reports[0].dataSeconds = 5; }));
}

}  // namespace
}  // namespace tandem::telemetry
