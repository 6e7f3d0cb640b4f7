#pragma once
// Dynamic loss scaling for float16, whose numbers end at 65504 and fade below 2^-14 (Micikevicius et al. 2018, "Mixed
// precision training"): the loss, and so every gradient, is multiplied by a scale that is halved when gradients
// overflow, in a step that is skipped, and doubled after many good steps. Scales are powers of two, so that dividing by
// them is exact.

#include <cstdint>

namespace tandem::optim {

struct LossScaleOptions {
  double initial = 0x1p16;
  std::int64_t growthSteps = 2000;  // good steps in a row after which it is doubled
};

class LossScaler {
 public:
  static constexpr double smallest = 1, largest = 0x1p24;

  // Throws Error of kind usage for a scale that is no power of two from smallest to largest, or no growth steps.
  explicit LossScaler(const LossScaleOptions& options);

  double scale() const { return scale_; }
  std::int64_t goodSteps() const { return goodSteps_; }  // since the scale changed last

  void stepWasGood();
  // The gradients were not finite. Halves the scale; false when it is at its smallest already, so that it is not to
  // blame.
  bool gradientsOverflowed();

  // Goes on from a state that scale() and goodSteps() gave. Throws Error of kind badData for what cannot be one.
  void restore(double scale, std::int64_t goodSteps);

 private:
  double scale_;
  std::int64_t growthSteps_;
  std::int64_t goodSteps_ = 0;
};

}  // namespace tandem::optim
