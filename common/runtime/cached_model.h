#pragma once
// A model over a KV cache, as whoever feeds it tokens sees it: programs for the next tokens of some sequences, the
// caches that these fill, and the projection onto the vocabulary. All of it on one rank, or a part on each of several
// (DecodingRanks), which then make the same calls in the same order.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/model/configuration.h"
#include "common/runtime/decoding_ranks.h"
#include "common/runtime/executable.h"
#include "common/runtime/parameter_store.h"
#include "common/sharding/decoding.h"

namespace tandem::runtime {

class CachedModel {
 public:
  // Caches of `slots` sequences of `capacity` tokens, and logits of `headRows` hidden states at once. `parameters` are
  // those of sharding::DecodingSplit; null `ranks`: all of the model is here. What is referred to lives as long.
  CachedModel(const model::Configuration& configuration, const ParameterStore& parameters, std::int64_t slots,
              std::int64_t capacity, std::int64_t headRows, kernels::Backend& backend, kernels::Stream& stream,
              std::shared_ptr<Arena> arena, DecodingRanks* ranks, model::CacheFormat caches);

  // A program for `fresh` tokens of each of `sequences`, whose caches are those of the slots from `firstSlot` on.
  std::unique_ptr<Executable> compile(std::int64_t sequences, std::int64_t fresh);
  void useSlots(Executable& block, std::int64_t firstSlot) const;

  // tokens and positions [sequences, fresh]; lengths [sequences]: tokens in the caches before. `isRepeated`: by
  // recordings, where the same block runs again and again over the same slots.
  void run(Executable& block, const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& positions,
           const std::vector<std::int32_t>& lengths, bool isRepeated);

  // Whether this rank has what comes of a run: the ranks of the last stage. Only they call the next two.
  bool hasLogits() const { return split_.hasHead(); }
  // Hidden states of the block's last run, as stored, rowBytes() each.
  std::vector<std::byte> hidden(Executable& block) const;
  // Logits [headRows, vocabulary] of headRows hidden states, the same bits on all tensor ranks.
  std::vector<float> logits(const std::byte* hidden);
  std::int64_t rowBytes() const;

  std::int64_t cacheBytes() const { return caches_->bytes(); }  // held here
  std::int64_t cacheBytesOfToken() const;                       // of one sequence
  const Executable* head() const { return head_.get(); }        // null where no logits are computed

 private:
  void makeHead();

  const model::Configuration& configuration_;
  const ParameterStore& parameters_;
  std::int64_t slots_, capacity_, headRows_;
  kernels::Backend& backend_;
  kernels::Stream& stream_;
  std::shared_ptr<Arena> arena_;
  DecodingRanks* ranks_;
  sharding::DecodingSplit split_;
  std::optional<ActivationExchange> activations_;
  std::unique_ptr<DeviceMemory> caches_;  // [layer][key, value][slots, kvHeads, capacity, headSize]
  std::unique_ptr<Executable> head_;
};

}  // namespace tandem::runtime
