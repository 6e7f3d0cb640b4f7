#include "common/data/sample_order.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "common/base/error.h"
#include "common/base/random.h"

namespace tandem::data {
namespace {

constexpr std::int64_t longestCycle = 65536;

// Turns of each dataset in a cycle: the shortest cycle in which all weights are whole turns (to 1e-9), or the longest
// cycle with the weights rounded so that they fill it (largest remainders first).
std::vector<std::int64_t> turnsOf(std::span<const double> weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<std::int64_t> turns(weights.size());
  for (std::int64_t length = 1; length <= longestCycle; ++length) {
    const bool whole = std::ranges::all_of(weights, [&](double weight) {
      const double exact = weight / sum * static_cast<double>(length);
      return std::abs(exact - std::round(exact)) < 1e-9 * exact;
    });
    if (!whole) continue;
    std::ranges::transform(weights, turns.begin(),
                           [&](double weight) { return std::llround(weight / sum * static_cast<double>(length)); });
    return turns;
  }
  std::vector<std::pair<double, std::size_t>> remainders;
  std::int64_t left = longestCycle;
  for (std::size_t d = 0; d < weights.size(); ++d) {
    const double exact = weights[d] / sum * static_cast<double>(longestCycle);
    turns[d] = static_cast<std::int64_t>(exact);
    left -= turns[d];
    remainders.emplace_back(static_cast<double>(turns[d]) - exact, d);
  }
  std::ranges::sort(remainders);
  for (std::int64_t i = 0; i < left; ++i) ++turns[remainders[static_cast<std::size_t>(i)].second];
  return turns;
}

void checkWeights(std::span<const double> weights) {
  if (weights.empty()) throw base::Error(base::ErrorKind::usage, "a mixture needs at least one dataset");
  for (const double weight : weights) {
    if (!(weight > 0) || !std::isfinite(weight)) {
      throw base::Error(base::ErrorKind::usage,
                        "the weight " + std::to_string(weight) + " of a dataset is not a positive number");
    }
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (const double weight : weights) {
    if (weight * static_cast<double>(longestCycle) < sum * (1 - 1e-9)) {
      throw base::Error(base::ErrorKind::usage, "the weight " + std::to_string(weight) +
                                                    " of a dataset is less than 1/" + std::to_string(longestCycle) +
                                                    " of the sum of the weights");
    }
  }
}

}  // namespace

std::int64_t trainingWindows(std::int64_t tokens, std::int64_t sequenceLength) {
  return std::max<std::int64_t>(1, tokens / sequenceLength);
}

std::int64_t evaluationWindows(std::int64_t tokens, std::int64_t sequenceLength) {
  return (tokens + sequenceLength - 1) / sequenceLength;
}

MixtureOrder::MixtureOrder(std::span<const double> weights) {
  checkWeights(weights);
  share_ = turnsOf(weights);
  const std::int64_t length = std::accumulate(share_.begin(), share_.end(), std::int64_t{0});
  // Each slot goes to the dataset that is furthest behind its share; ties to the first.
  std::vector<std::int64_t> dealt(share_.size(), 0);
  for (std::int64_t slot = 0; slot < length; ++slot) {
    std::size_t chosen = 0;
    std::int64_t largest = INT64_MIN;
    for (std::size_t d = 0; d < share_.size(); ++d) {
      const std::int64_t behind = share_[d] * (slot + 1) - dealt[d] * length;
      if (behind > largest) {
        largest = behind;
        chosen = d;
      }
    }
    cycle_.push_back({static_cast<std::uint32_t>(chosen), static_cast<std::uint32_t>(dealt[chosen]++)});
  }
}

MixtureOrder::Turn MixtureOrder::operator()(std::int64_t sample) const {
  TANDEM_ASSERT(sample >= 0, "samples are counted from 0");
  const auto length = static_cast<std::int64_t>(cycle_.size());
  const Slot& slot = cycle_[static_cast<std::size_t>(sample % length)];
  return {slot.dataset, sample / length * share_[slot.dataset] + slot.before};
}

SampleOrder::SampleOrder(std::uint64_t seed, std::vector<std::int64_t> windows, std::span<const double> weights)
    : seed_(seed), windows_(std::move(windows)), mixture_(weights) {
  TANDEM_ASSERT(windows_.size() == weights.size(), "a weight for each dataset");
  TANDEM_ASSERT(std::ranges::all_of(windows_, [](std::int64_t count) { return count > 0; }), "no dataset is empty");
}

Sample SampleOrder::operator()(std::int64_t sample) const {
  const MixtureOrder::Turn turn = mixture_(sample);
  const std::int64_t windows = windows_[static_cast<std::size_t>(turn.dataset)];
  const std::int64_t epoch = turn.ordinal / windows;
  // A key a dataset, so that two datasets of one size aren't gone through in step.
  const auto words = base::philox(seed_, static_cast<std::uint64_t>(turn.dataset), 0x73616d706c65);  // "sample"
  const std::uint64_t key = std::uint64_t{words[1]} << 32 | words[0];
  const base::Permutation permutation(static_cast<std::uint64_t>(windows), key, static_cast<std::uint64_t>(epoch));
  const std::uint64_t window = permutation(static_cast<std::uint64_t>(turn.ordinal % windows));
  return {turn.dataset, epoch, static_cast<std::int64_t>(window)};
}

}  // namespace tandem::data
