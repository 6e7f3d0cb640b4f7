#pragma once
// Choosing the next token from logits.

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/random.h"

namespace tandem::runtime {

struct SamplingOptions {
  float temperature = 0.8f;        // 0: always the most likely token (greedy)
  std::int64_t topK = 0;           // keep the k most likely; 0: all
  float topP = 1.0f;               // keep the fewest most likely tokens whose probabilities sum to at least p
  float minP = 0.0f;               // keep tokens at least that fraction as likely as the most likely one
  float repetitionPenalty = 1.0f;  // divides positive logits of tokens seen before, multiplies negative ones (CTRL)
  std::uint64_t seed = 0;
};

// Throws Error of kind usage for a value out of its range, naming the option.
void check(const SamplingOptions& options);

// A sequence's own sampler: its random numbers depend on (seed, sequence) alone, not on what else is in the batch.
// Order: repetition penalty, temperature, top-k, top-p, min-p. Ties go to the lower token id.
class Sampler {
 public:
  Sampler(const SamplingOptions& options, std::uint64_t sequence);

  // `logits` of the vocabulary are changed in place; `history` are all tokens of the sequence so far. Throws Error of
  // kind numeric when a logit is not finite.
  std::int32_t next(std::span<float> logits, std::span<const std::int32_t> history);

 private:
  struct Candidate {
    std::int32_t token;
    float logit;  // of the tempered distribution, less the largest
  };
  void penalise(std::span<float> logits, std::span<const std::int32_t> history) const;
  void keepLikely(std::vector<Candidate>& candidates) const;

  SamplingOptions options_;
  base::RandomStream random_;
  std::vector<Candidate> candidates_;
};

}  // namespace tandem::runtime
