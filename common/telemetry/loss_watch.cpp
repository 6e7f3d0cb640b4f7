#include "common/telemetry/loss_watch.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "common/telemetry/median.h"

namespace tandem::telemetry {
namespace {

constexpr std::size_t window = 64, least = 16;  // steps that a loss is compared with
// In deviations, told from the median deviation as of a normal distribution. Batches of few tokens differ by more than
// their neighbours told, so a spike must matter too.
constexpr double deviations = 8, deviationOfMedian = 1.4826, leastRise = 0.1;
constexpr std::int64_t longest = 32;  // a loss that stays up for so long is a new level and no spike

}  // namespace

std::optional<std::string> LossWatch::add(double loss) {
  if (!std::isfinite(loss)) return std::nullopt;
  if (losses_.size() >= least) {
    const double middle = median({losses_.begin(), losses_.end()});
    std::vector<double> distances;
    for (const double other : losses_) distances.push_back(std::abs(other - middle));
    const double spread = deviationOfMedian * median(std::move(distances));
    if (loss > middle + std::max(deviations * spread, leastRise * std::abs(middle)) && since_ < longest) {
      if (since_++ > 0) return std::nullopt;
      char line[128];
      std::snprintf(line, sizeof line, "the loss jumped to %.4f, from a median of %.4f over the last %zu steps", loss,
                    middle, losses_.size());
      return line;
    }
  }
  if (since_ >= longest) losses_.clear();
  since_ = 0;
  losses_.push_back(loss);
  if (losses_.size() > window) losses_.pop_front();
  return std::nullopt;
}

}  // namespace tandem::telemetry
