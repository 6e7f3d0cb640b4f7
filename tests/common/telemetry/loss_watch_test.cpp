// A loss spike is told when it begins, and a loss that merely scatters, falls or stays up is none.

#include "common/telemetry/loss_watch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tandem::telemetry {
namespace {

double scattered(int step) { return 3 + 0.1 * std::sin(step * 12.9898); }

int told(LossWatch& watch, double loss) { return watch.add(loss).has_value() ? 1 : 0; }

TEST(LossWatch, tellsOfASpikeOnceAndAgainOfTheNextOne) {
  LossWatch watch;
  for (int step = 0; step < 40; ++step) EXPECT_EQ(told(watch, scattered(step)), 0);
  const auto text = watch.add(5.5);
  ASSERT_TRUE(text.has_value());
  EXPECT_NE(text->find("jumped to 5.5000, from a median of 3.0"), std::string::npos) << *text;
  EXPECT_EQ(told(watch, 6), 0);
  EXPECT_EQ(told(watch, scattered(40)), 0);
  EXPECT_EQ(told(watch, 5.5), 1);
}

TEST(LossWatch, aLossThatFallsOrScattersOrIsNotFiniteIsNoSpike) {
  LossWatch watch;
  for (int step = 0; step < 1000; ++step) {
    EXPECT_EQ(told(watch, 2 + 8 * std::exp(-step / 20.0) + scattered(step)), 0) << step;
    EXPECT_EQ(told(watch, std::numeric_limits<double>::quiet_NaN()), 0);
  }
}

TEST(LossWatch, aSmallRiseOverAnAlmostConstantLossIsNoSpike) {
  LossWatch watch;
  for (int step = 0; step < 40; ++step) watch.add(3);
  EXPECT_EQ(told(watch, 3.2), 0);
  EXPECT_EQ(told(watch, 3.4), 1);
}

TEST(LossWatch, aLossThatStaysUpIsTheNewLevel) {
  LossWatch watch;
  for (int step = 0; step < 40; ++step) watch.add(3);
  int spikes = 0;
  for (int step = 0; step < 200; ++step) spikes += told(watch, 6);
  EXPECT_EQ(spikes, 1);
  EXPECT_EQ(told(watch, 9), 1);
}

TEST(LossWatch, theFirstStepsAreComparedWithNothing) {
  LossWatch watch;
  for (int step = 0; step < 16; ++step) EXPECT_EQ(told(watch, step % 2 == 0 ? 1 : 9), 0);
}

}  // namespace
}  // namespace tandem::telemetry
