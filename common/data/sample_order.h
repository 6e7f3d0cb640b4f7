#pragma once
// Which training sample comes when: a pure function of (seed, global sample index), with no state and no memory of the
// past. So the order depends on neither ranks, micro batches nor restarts, and a run's whole data state is one number.
//
// A sample is a window: sequenceLength consecutive tokens of a dataset, at a multiple of sequenceLength in the stream
// of its documents. Corner cases, decided here:
// - Training leaves a dataset's last window out when it is shorter than the others, so every sample is full; a dataset
//   shorter than one window is one short window.
// - Each epoch of a dataset takes every window once, in an order of its own (base::Permutation of seed, dataset,
// epoch).
// - A mixture deals its datasets out in a fixed cycle of at most 65536 samples in which every dataset has its share,
//   spread evenly: after any number of samples, no dataset is ahead of or behind its weight by more than one
//   sample for each other dataset. Weights that are no multiples of 1/65536 are rounded to one.
// - Datasets of a mixture have epochs of their own: a small one with a large weight is repeated.

#include <cstdint>
#include <span>
#include <vector>

namespace tandem::data {

struct Sample {
  std::int64_t dataset = 0;
  std::int64_t epoch = 0;  // of that dataset
  std::int64_t window = 0;
  bool operator==(const Sample&) const = default;
};

// Windows of a dataset in training, and in evaluation, where the short last one counts too.
std::int64_t trainingWindows(std::int64_t tokens, std::int64_t sequenceLength);
std::int64_t evaluationWindows(std::int64_t tokens, std::int64_t sequenceLength);

// Which dataset of a mixture each sample comes from.
class MixtureOrder {
 public:
  // Throws Error of kind usage for a weight that is not positive and finite, or below 1/65536 of the sum.
  explicit MixtureOrder(std::span<const double> weights);

  struct Turn {
    std::int64_t dataset = 0;
    std::int64_t ordinal = 0;  // how many samples of this dataset came before
  };
  Turn operator()(std::int64_t sample) const;

 private:
  struct Slot {
    std::uint32_t dataset;
    std::uint32_t before;  // turns of this dataset earlier in the cycle
  };
  std::vector<Slot> cycle_;
  std::vector<std::int64_t> share_;  // turns of each dataset in a cycle
};

class SampleOrder {
 public:
  // windows[d]: how many windows dataset d has; weights[d]: its share of the samples, in any unit.
  SampleOrder(std::uint64_t seed, std::vector<std::int64_t> windows, std::span<const double> weights);

  // sample >= 0; never ends.
  Sample operator()(std::int64_t sample) const;

 private:
  std::uint64_t seed_;
  std::vector<std::int64_t> windows_;
  MixtureOrder mixture_;
};

}  // namespace tandem::data
