#include "common/runtime/cached_model.h"

#include <algorithm>

#include "common/base/error.h"
#include "common/graph/passes.h"

namespace tandem::runtime {
namespace {

std::int64_t bytesOf(const graph::Tensor& tensor) { return tensor.shape.count() * base::byteSize(tensor.type); }

std::int64_t bytesOfStates(const graph::Program& program) {
  std::int64_t bytes = 0;
  for (const graph::TensorId id : program.ofRole(graph::Role::state)) bytes += bytesOf(program.tensor(id));
  return bytes;
}

sharding::DecodingSplit splitFor(const model::Configuration& configuration, const ParameterStore& parameters,
                                 const DecodingRanks* ranks, model::CacheFormat caches) {
  const bool quantised = parameters.matrices() != nullptr;
  if (ranks == nullptr) return {configuration, {}, {}, quantised, caches};
  return {configuration, ranks->grid(), ranks->own(), quantised, caches};
}

}  // namespace

CachedModel::CachedModel(const model::Configuration& configuration, const ParameterStore& parameters,
                         std::int64_t slots, std::int64_t capacity, std::int64_t headRows, kernels::Backend& backend,
                         kernels::Stream& stream, std::shared_ptr<Arena> arena, DecodingRanks* ranks,
                         model::CacheFormat caches)
    : configuration_(configuration),
      parameters_(parameters),
      slots_(slots),
      capacity_(capacity),
      headRows_(headRows),
      backend_(backend),
      stream_(stream),
      arena_(std::move(arena)),
      ranks_(ranks),
      split_(splitFor(configuration, parameters, ranks, caches)) {
  if (ranks_ != nullptr) activations_.emplace(ranks_->device());
  caches_ =
      std::make_unique<DeviceMemory>(backend_, bytesOfStates(split_.body(slots_, 1, capacity_, parameters_.storage())));
  makeHead();
}

void CachedModel::makeHead() {
  if (!split_.hasHead() || split_.tokens().count == 0) return;
  head_ = std::make_unique<Executable>(parameters_.prepared(split_.head(headRows_, parameters_.storage())), backend_,
                                       stream_, arena_);
  parameters_.bindRows(*head_, split_.headMatrix(), split_.firstHeadRow());
}

std::unique_ptr<Executable> CachedModel::compile(std::int64_t sequences, std::int64_t fresh) {
  const graph::Program program = graph::fuse(split_.body(sequences, fresh, capacity_, parameters_.storage()));
  auto block = std::make_unique<Executable>(parameters_.prepared(program), backend_, stream_, arena_);
  parameters_.bindTo(*block);
  if (activations_) block->exchangeThrough(&*activations_);
  return block;
}

void CachedModel::useSlots(Executable& block, std::int64_t firstSlot) const {
  std::byte* memory = caches_->data();
  for (const graph::TensorId id : block.program().ofRole(graph::Role::state)) {
    const graph::Tensor& cache = block.program().tensor(id);
    const std::int64_t slotBytes = bytesOf(cache) / cache.shape[0];
    block.bind(cache.name, memory + firstSlot * slotBytes);
    memory += slots_ * slotBytes;
  }
}

void CachedModel::run(Executable& block, const std::vector<std::int32_t>& tokens,
                      const std::vector<std::int32_t>& positions, const std::vector<std::int32_t>& lengths,
                      bool isRepeated) {
  const auto give = [&](const char* name, const std::vector<std::int32_t>& values) {
    if (block.has(name)) block.setInput(name, values.data());
  };
  give("tokens", tokens);
  give("positions", positions);
  give("lengths", lengths);
  if (activations_) activations_->waitForSends();
  if (isRepeated) {
    block.replay();
  } else {
    block.run();
  }
}

std::int64_t CachedModel::rowBytes() const { return configuration_.width * base::byteSize(parameters_.storage()); }

std::vector<std::byte> CachedModel::hidden(Executable& block) const {
  const graph::Tensor& states = block.program().tensor(block.program().find("final_norm"));
  std::vector<std::byte> rows(static_cast<std::size_t>(bytesOf(states)));
  block.readOutput("final_norm", rows.data());
  return rows;
}

std::vector<float> CachedModel::logits(const std::byte* hidden) {
  TANDEM_ASSERT(hasLogits(), "the projection onto the vocabulary belongs to the last stage");
  std::vector<float> own;
  if (head_) {
    head_->setInput("hidden", hidden);
    head_->replay();
    own = head_->readFloats("logits");
  }
  const int ranks = ranks_ == nullptr ? 1 : ranks_->grid().tensor;
  if (ranks == 1) return own;
  const std::int64_t vocabulary = configuration_.vocabularySize;
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < ranks; ++rank) counts.push_back(headRows_ * split_.tokensOf(rank).count);
  std::vector<float> parts(static_cast<std::size_t>(headRows_ * vocabulary)), rows(parts.size());
  ranks_->tensor().allGather({own.data(), base::DType::f32, std::ssize(own)},
                             {parts.data(), base::DType::f32, std::ssize(parts)}, counts);
  // Each rank's part has all rows, of its tokens.
  const float* from = parts.data();
  for (int rank = 0; rank < ranks; ++rank) {
    const sharding::Range tokens = split_.tokensOf(rank);
    for (std::int64_t row = 0; row < headRows_; ++row, from += tokens.count) {
      std::copy_n(from, tokens.count, rows.data() + row * vocabulary + tokens.begin);
    }
  }
  return rows;
}

std::int64_t CachedModel::cacheBytesOfToken() const {
  return bytesOfStates(split_.body(1, 1, 1, parameters_.storage()));
}

}  // namespace tandem::runtime
