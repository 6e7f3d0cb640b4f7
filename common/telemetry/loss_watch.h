#pragma once
// Loss spikes: a step whose loss stands out from those before it, by far more than they differ among each other.

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

namespace tandem::telemetry {

class LossWatch {
 public:
  // Of the next step. A spike is told once, with the text for people, and again when the loss has come down and risen
  // again; losses that are not finite are passed over.
  std::optional<std::string> add(double loss);

 private:
  std::deque<double> losses_;  // of the last steps without a spike
  std::int64_t since_ = 0;     // steps that the spike has lasted
};

}  // namespace tandem::telemetry
