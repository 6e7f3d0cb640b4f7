#pragma once
// Writes text with a model: prompts go through it in blocks that fill a KV cache (prefill), then every step gives one
// token to each sequence of the batch (decode). Where several ranks have a part of the model each, all of them are
// given the same requests, and all have the same answers.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/model/configuration.h"
#include "common/runtime/cached_model.h"
#include "common/runtime/sampler.h"

namespace tandem::runtime {

struct GenerationRequest {
  std::vector<std::int32_t> prompt;  // at least one token
  std::int64_t maxTokens = 128;
  std::vector<std::int32_t> stopTokens;  // end a sequence, and are not part of it
  std::uint64_t sequence = 0;            // number of the sequence, for its random numbers
};

struct Generation {
  std::vector<std::int32_t> tokens;  // without the prompt
  std::string stopReason;            // "stop_token", "max_tokens", "cache_full" or "stopped" (by the caller)
  double prefillSeconds = 0;
  double decodeSeconds = 0;  // of the batch, while this sequence was being written
};

class Generator {
 public:
  // Up to `batch` sequences at once, each of up to `capacity` tokens, prompt included. Collective over `ranks`, which
  // decode together; null: this one has all of the model.
  Generator(const model::Configuration& configuration, const ParameterStore& parameters, std::int64_t batch,
            std::int64_t capacity, kernels::Backend& backend, kernels::Stream& stream, std::shared_ptr<Arena> arena,
            DecodingRanks* ranks = nullptr, model::CacheFormat caches = model::CacheFormat::asStored);
  ~Generator();

  // Called with each token as it is made and the index of its request, on every rank; false, as the first rank says it,
  // ends that sequence.
  using OnToken = std::function<bool(std::int64_t request, std::int32_t token)>;

  // At most `batch` requests. Collective. Throws Error of kind usage for a prompt that is empty or does not fit the
  // capacity.
  std::vector<Generation> run(const std::vector<GenerationRequest>& requests, const SamplingOptions& sampling,
                              const OnToken& onToken = {});

  // Bytes that one step of decoding reads: of the weights, all that is multiplied (of an embedding table only rows are
  // taken, which do not count); and of the caches, for each token that a sequence has there. Of this rank alone.
  std::int64_t weightBytesOfStep() const;
  std::int64_t cacheBytesOfToken() const { return model_->cacheBytesOfToken(); }
  std::int64_t cacheBytes() const { return model_->cacheBytes(); }  // held

 private:
  struct Sequence;

  std::vector<Sequence> begin(const std::vector<GenerationRequest>& requests, const SamplingOptions& sampling) const;
  std::vector<float> prefill(Sequence& sequence, std::int64_t slot);
  void decodeStep(std::vector<Sequence>& sequences, const OnToken& onToken);
  void advance(const std::vector<Sequence*>& rows, std::vector<float> logits, const OnToken& onToken);
  std::vector<std::int32_t> chooseTokens(const std::vector<Sequence*>& rows, std::vector<float>& logits) const;

  std::int64_t vocabularySize_;
  std::int64_t batch_;
  std::int64_t limit_;  // of a sequence
  DecodingRanks* ranks_;
  std::unique_ptr<CachedModel> model_;
  std::vector<std::unique_ptr<Executable>> prefillBlocks_;  // for one sequence, the largest block first
  std::unique_ptr<Executable> decode_;
};

}  // namespace tandem::runtime
