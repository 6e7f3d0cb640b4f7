#pragma once
// How likely a model finds texts that go on from others: the sum of the log probabilities of a continuation's tokens,
// and whether each of them is the likeliest (what greedy decoding would write).
//
// What goes through the model once is not computed again: the tokens that all requests begin with (few-shot examples)
// are computed once for all, then those that the requests of a group begin with (the question of some answers), then
// each request's own. So a request's numbers do not depend on which other groups are computed with it, but for the
// rounding of blocks of different sizes.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/model/configuration.h"
#include "common/runtime/executable.h"
#include "common/runtime/parameter_store.h"

namespace tandem::runtime {

// Tokens and the last of them that are asked about: at least one, and at least one stands before them.
struct ContinuationRequest {
  std::vector<std::int32_t> tokens;
  std::int64_t asked = 1;
};

struct ContinuationScore {
  double logLikelihood = 0;  // nats, in float64 over the model's float32 logits
  bool isGreedy = true;
};

// Requests that begin alike, as far as they do.
using ContinuationGroup = std::vector<ContinuationRequest>;
using ContinuationScores = std::vector<ContinuationScore>;

class ContinuationScorer {
 public:
  // Computes `batch` groups at once, of requests of at most `capacity` tokens.
  ContinuationScorer(const model::Configuration& configuration, const ParameterStore& parameters, std::int64_t batch,
                     std::int64_t capacity, kernels::Backend& backend, kernels::Stream& stream,
                     std::shared_ptr<Arena> arena);
  ~ContinuationScorer();

  // The tokens that all groups begin with, before any that is asked about: what run() may be told to keep.
  static std::int64_t sharedPrefix(std::span<const ContinuationGroup> groups);

  // Scores in the order of the groups and their requests. The first `prefix` tokens of all requests are the same
  // (sharedPrefix, of these groups and others that the numbers shall not depend on). Throws Error of kind numeric when
  // a logit is no number.
  std::vector<ContinuationScores> run(std::span<const ContinuationGroup> groups, std::int64_t prefix);

 private:
  struct Slot;
  struct Row;

  void runBatch(std::span<const ContinuationGroup> groups, std::int64_t prefix, std::span<ContinuationScores> scores);
  void feed(std::vector<Slot>& slots);
  void feedBlock(std::vector<Slot>& slots);
  void askHead();

  const model::Configuration& configuration_;
  std::int64_t batch_;
  std::int64_t capacity_;
  std::int64_t rowBytes_;  // of a hidden state
  std::int64_t headRows_;
  std::unique_ptr<DeviceMemory> caches_;  // [layer][key, value][batch, kvHeads, capacity, headSize]
  std::vector<std::unique_ptr<Executable>> blocks_;
  std::unique_ptr<Executable> head_;
  std::vector<std::int32_t> cachedPrefix_;  // what all slots hold from a run before
  std::vector<Row> rows_;                   // hidden states whose successors are asked about
  std::vector<std::byte> hidden_;           // of these rows
};

}  // namespace tandem::runtime
