#pragma once
// How likely a model finds texts that go on from others: the sum of the log probabilities of a continuation's tokens,
// and whether each of them is the likeliest (what greedy decoding would write).
//
// What goes through the model once is not computed again: the tokens that all requests begin with (few-shot examples)
// are computed once for all, then those that the requests of a group begin with (the question of some answers), then
// each request's own. So a request's numbers do not depend on which other groups are computed with it, but for the
// rounding of blocks of different sizes. Where several ranks have a part of the model each, all of them are given the
// same requests, and those of the last stage have the scores.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/runtime/cached_model.h"

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
  // Computes `batch` groups at once, of requests of at most `capacity` tokens. Collective over `ranks`, which decode
  // together; null: this one has all of the model.
  ContinuationScorer(const model::Configuration& configuration, const ParameterStore& parameters, std::int64_t batch,
                     std::int64_t capacity, kernels::Backend& backend, kernels::Stream& stream,
                     std::shared_ptr<Arena> arena, DecodingRanks* ranks = nullptr,
                     model::CacheFormat caches = model::CacheFormat::asStored);
  ~ContinuationScorer();

  // The tokens that all groups begin with, before any that is asked about: what run() may be told to keep.
  static std::int64_t sharedPrefix(std::span<const ContinuationGroup> groups);

  // Scores in the order of the groups and their requests. The first `prefix` tokens of all requests are the same
  // (sharedPrefix, of these groups and others that the numbers shall not depend on). Throws Error of kind numeric, on
  // the ranks that have the scores, when a logit is no number. Collective.
  std::vector<ContinuationScores> run(std::span<const ContinuationGroup> groups, std::int64_t prefix);

 private:
  struct Slot;
  struct Row;

  void runBatch(std::span<const ContinuationGroup> groups, std::int64_t prefix, std::span<ContinuationScores> scores);
  void feed(std::vector<Slot>& slots);
  void feedBlock(std::vector<Slot>& slots);
  void keepRows(const std::vector<Slot>& slots, const std::vector<std::byte>& hidden, std::int64_t size);
  void askHead();

  std::int64_t vocabularySize_;
  std::int64_t batch_;
  std::int64_t capacity_;
  std::int64_t headRows_;
  std::unique_ptr<CachedModel> model_;
  std::vector<std::unique_ptr<Executable>> blocks_;
  std::vector<std::int32_t> cachedPrefix_;  // what all slots hold from a run before
  std::vector<Row> rows_;                   // hidden states whose successors are asked about
  std::vector<std::byte> hidden_;           // of these rows
  bool isFinite_ = true;                    // all logits so far
};

}  // namespace tandem::runtime
