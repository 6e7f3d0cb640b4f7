// After the exchange a rank's own pieces hold the sum of everybody's gradients.

#include "common/optim/gradient_exchange.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "common/comm/routed.h"
#include "tests/common/optim/parameters.h"
#include "tests/mpi_test.h"

namespace tandem::optim {
namespace {

TEST(GradientExchange, leavesTheSumOverAllRanksInEachRanksOwnPieces) {
  for (const std::int64_t bucketElements : {1, 150, 100000}) {
    Parameters parameters({.bucketElements = bucketElements}, test::world());
    for (int round = 1; round <= 3; ++round) {
      parameters.exchangeGradients(round);
      for (const sharding::OwnedRun& run : parameters.optimizer().ownedRuns()) {
        for (std::int64_t i = 0; i < run.count; ++i) {
          EXPECT_NEAR(parameters.store().gradients()[run.flatOffset + i], madeUp(run.parameter, run.begin + i, round),
                      1e-6);
        }
      }
    }
  }
}

TEST(GradientExchange, roundsItsSumsOnTheWireWhereThatIsAsked) {
  const auto routed = comm::makeRouted(test::world(), {.route = comm::Route::ring, .bf16OnWire = true});
  Parameters parameters({}, *routed);
  parameters.exchangeGradients(1);
  double furthest = 0;
  for (const sharding::OwnedRun& run : parameters.optimizer().ownedRuns()) {
    for (std::int64_t i = 0; i < run.count; ++i) {
      const double sum = parameters.store().gradients()[run.flatOffset + i];
      furthest = std::max(furthest, std::abs(sum - madeUp(run.parameter, run.begin + i, 1)));
    }
  }
  EXPECT_LE(furthest, 0.01 * test::world().size());
  EXPECT_EQ(furthest > 1e-5, test::world().size() > 1);
}

TEST(GradientExchange, worksWhereARankOwnsNothingOfABucket) {
  Setting setting;
  setting.ownership = sharding::FlatLayout::Ownership::wholeParameters;
  setting.shapes = {{"only", {40, 8}}};
  setting.traits = {{}};
  Parameters parameters(setting, test::world());
  parameters.exchangeGradients(1);
  for (const sharding::OwnedRun& run : parameters.optimizer().ownedRuns()) {
    EXPECT_NEAR(parameters.store().gradients()[run.flatOffset + 7], madeUp(0, 7, 1), 1e-6);
  }
  parameters.optimizer().update(0.1, 1.0, 1);
  parameters.optimizer().gatherWeights();
  EXPECT_NE(parameters.weights(0)[7], madeUp(0, 7, 0)) << "the owner's update has to reach every rank";
}

}  // namespace
}  // namespace tandem::optim
