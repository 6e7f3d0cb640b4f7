#include "common/optim/loss_scaler.h"

#include <algorithm>
#include <cmath>

#include "common/base/error.h"

namespace tandem::optim {
namespace {

bool isPossible(double scale) {
  int exponent = 0;
  return scale >= LossScaler::smallest && scale <= LossScaler::largest && std::frexp(scale, &exponent) == 0.5;
}

}  // namespace

LossScaler::LossScaler(const LossScaleOptions& options) : scale_(options.initial), growthSteps_(options.growthSteps) {
  if (!isPossible(scale_)) {
    throw base::Error(base::ErrorKind::usage, "--loss-scale is " + std::to_string(scale_) +
                                                  "; it must be a power of two from 1 to 16777216 (2^24)");
  }
  if (growthSteps_ < 1) {
    throw base::Error(base::ErrorKind::usage,
                      "--loss-scale-growth-steps is " + std::to_string(growthSteps_) + "; it must be at least 1");
  }
}

void LossScaler::stepWasGood() {
  if (++goodSteps_ < growthSteps_) return;
  scale_ = std::min(2 * scale_, largest);
  goodSteps_ = 0;
}

bool LossScaler::gradientsOverflowed() {
  goodSteps_ = 0;
  if (scale_ == smallest) return false;
  scale_ = scale_ / 2;
  return true;
}

void LossScaler::restore(double scale, std::int64_t goodSteps) {
  if (!isPossible(scale) || goodSteps < 0) {
    throw base::Error(base::ErrorKind::badData, "a loss scale of " + std::to_string(scale) + " after " +
                                                    std::to_string(goodSteps) + " good steps cannot be");
  }
  scale_ = scale;
  goodSteps_ = goodSteps;
}

}  // namespace tandem::optim
