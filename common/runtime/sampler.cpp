#include "common/runtime/sampler.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "common/base/error.h"

namespace tandem::runtime {

using base::Error;
using base::ErrorKind;

void check(const SamplingOptions& options) {
  auto demand = [](bool holds, const std::string& option, const std::string& range) {
    if (!holds) throw Error(ErrorKind::usage, option + " must be " + range);
  };
  demand(options.temperature >= 0 && std::isfinite(options.temperature), "--temperature", "0 (greedy) or above");
  demand(options.topK >= 0, "--top-k", "0 (all) or above");
  demand(options.topP > 0 && options.topP <= 1, "--top-p", "above 0, at most 1");
  demand(options.minP >= 0 && options.minP <= 1, "--min-p", "from 0 to 1");
  demand(options.repetitionPenalty > 0 && std::isfinite(options.repetitionPenalty), "--repetition-penalty", "above 0");
}

Sampler::Sampler(const SamplingOptions& options, std::uint64_t sequence)
    : options_(options), random_(options.seed, sequence) {}

std::int32_t Sampler::next(std::span<float> logits, std::span<const std::int32_t> history) {
  penalise(logits, history);
  if (!std::all_of(logits.begin(), logits.end(), [](float logit) { return std::isfinite(logit); })) {
    throw Error(ErrorKind::numeric, "the model's logits are no finite numbers; are its weights damaged?");
  }
  const auto likeliest = std::max_element(logits.begin(), logits.end());
  if (options_.temperature == 0) return static_cast<std::int32_t>(likeliest - logits.begin());
  candidates_.clear();
  for (std::size_t token = 0; token < logits.size(); ++token) {
    // The largest is taken off first: divided by a tiny temperature it would be infinite.
    candidates_.push_back({static_cast<std::int32_t>(token), (logits[token] - *likeliest) / options_.temperature});
  }
  keepLikely(candidates_);
  double total = 0;
  for (const Candidate& candidate : candidates_) total += std::exp(static_cast<double>(candidate.logit));
  double left = static_cast<double>(random_.nextUniform()) * total;
  for (const Candidate& candidate : candidates_) {
    left -= std::exp(static_cast<double>(candidate.logit));
    if (left < 0) return candidate.token;
  }
  return candidates_.back().token;
}

void Sampler::penalise(std::span<float> logits, std::span<const std::int32_t> history) const {
  if (options_.repetitionPenalty == 1.0f) return;
  std::vector<std::int32_t> seen(history.begin(), history.end());
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  for (const std::int32_t token : seen) {
    float& logit = logits[static_cast<std::size_t>(token)];
    logit = logit > 0 ? logit / options_.repetitionPenalty : logit * options_.repetitionPenalty;
  }
}

// Sorts the most likely first and cuts off what the options exclude.
void Sampler::keepLikely(std::vector<Candidate>& candidates) const {
  auto moreLikely = [](const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
  };
  if (options_.topK > 0 && options_.topK < static_cast<std::int64_t>(candidates.size())) {
    std::nth_element(candidates.begin(), candidates.begin() + options_.topK, candidates.end(), moreLikely);
    candidates.resize(static_cast<std::size_t>(options_.topK));
  }
  std::sort(candidates.begin(), candidates.end(), moreLikely);
  double total = 0;
  for (const Candidate& candidate : candidates) total += std::exp(static_cast<double>(candidate.logit));
  std::size_t kept = 0;
  double sum = 0;
  while (kept < candidates.size()) {
    const double weight = std::exp(static_cast<double>(candidates[kept].logit));
    if (kept > 0 && (sum >= static_cast<double>(options_.topP) * total || weight < static_cast<double>(options_.minP)))
      break;
    sum += weight;
    ++kept;
  }
  candidates.resize(kept);
}

}  // namespace tandem::runtime
