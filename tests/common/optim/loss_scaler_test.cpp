#include "common/optim/loss_scaler.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/common/data/expect_error.h"

namespace tandem::optim {
namespace {

using base::ErrorKind;
using data::expectError;

TEST(LossScaler, beginsAt65536AndHalvesWhenGradientsOverflow) {
  LossScaler scaler({});
  EXPECT_EQ(scaler.scale(), 65536);
  EXPECT_TRUE(scaler.gradientsOverflowed());
  EXPECT_EQ(scaler.scale(), 32768);
}

TEST(LossScaler, doublesAfterGoodStepsInARow) {
  LossScaler scaler({.initial = 8, .growthSteps = 3});
  scaler.stepWasGood();
  scaler.stepWasGood();
  EXPECT_EQ(scaler.scale(), 8);
  scaler.gradientsOverflowed();  // the row begins anew
  for (int step = 0; step < 2; ++step) scaler.stepWasGood();
  EXPECT_EQ(scaler.scale(), 4);
  scaler.stepWasGood();
  EXPECT_EQ(scaler.scale(), 8);
  EXPECT_EQ(scaler.goodSteps(), 0);
}

TEST(LossScaler, isNotToBlameAtItsSmallest) {
  LossScaler scaler({.initial = 2});
  EXPECT_TRUE(scaler.gradientsOverflowed());
  EXPECT_EQ(scaler.scale(), LossScaler::smallest);
  EXPECT_FALSE(scaler.gradientsOverflowed());
  EXPECT_EQ(scaler.scale(), LossScaler::smallest);
}

TEST(LossScaler, staysBelowItsLargest) {
  LossScaler scaler({.initial = LossScaler::largest, .growthSteps = 1});
  scaler.stepWasGood();
  EXPECT_EQ(scaler.scale(), LossScaler::largest);
}

TEST(LossScaler, goesOnFromASavedState) {
  const LossScaleOptions options{.initial = 64, .growthSteps = 3};
  LossScaler whole(options), resumed(options);
  whole.gradientsOverflowed();
  whole.stepWasGood();
  resumed.restore(whole.scale(), whole.goodSteps());
  for (int step = 0; step < 7; ++step) {
    whole.stepWasGood();
    resumed.stepWasGood();
    EXPECT_EQ(resumed.scale(), whole.scale()) << "after " << step;
  }
  EXPECT_EQ(whole.scale(), 128);
}

TEST(LossScaler, refusesScalesThatCannotBe) {
  for (const double scale : {0.0, -2.0, 0.5, 3.0, 1e5, 0x1p25, HUGE_VAL, std::nan("")}) {
    expectError(ErrorKind::usage, {"--loss-scale", "power of two"}, [&] { LossScaler({.initial = scale}); });
    expectError(ErrorKind::badData, {"loss scale"}, [&] { LossScaler({}).restore(scale, 0); });
  }
  expectError(ErrorKind::usage, {"--loss-scale-growth-steps is 0"}, [] { LossScaler({.growthSteps = 0}); });
  expectError(ErrorKind::badData, {"-1"}, [] { LossScaler({}).restore(4, -1); });
}

}  // namespace
}  // namespace tandem::optim
