#include "common/runtime/parameter_store.h"

#include "common/base/error.h"
#include "common/sharding/parameter_shards.h"

namespace tandem::runtime {
namespace {

void fillWithZeros(kernels::Backend& backend, kernels::Stream& stream, void* data, base::DType type,
                   std::int64_t count) {
  backend.run(kernels::Fill{.target = kernels::TensorView(data, type, {count}), .value = 0}, stream);
}

}  // namespace

ParameterStore::ParameterStore(const sharding::FlatLayout& layout, kernels::Backend& backend, kernels::Stream& stream,
                               base::DType storage, Gradients gradients)
    : layout_(layout), storage_(storage), backend_(backend), stream_(stream) {
  weights_ = std::make_unique<DeviceMemory>(backend, layout.count() * base::byteSize(storage));
  fillWithZeros(backend, stream, weights_->data(), storage, layout.count());
  if (gradients == Gradients::none) return;
  gradients_ = std::make_unique<DeviceMemory>(backend, layout.count() * base::byteSize(base::DType::f32));
  fillWithZeros(backend, stream, gradients_->data(), base::DType::f32, layout.count());
}

ParameterStore::ParameterStore(const sharding::FlatLayout& layout, kernels::Backend& backend, kernels::Stream& stream,
                               base::DType storage, const Shard& shard)
    : layout_(layout), storage_(storage), backend_(backend), stream_(stream), shard_(shard) {
  const std::int64_t own = layout.shardCount(shard.rank), held = shard.weights ? own : layout.count();
  weights_ = std::make_unique<DeviceMemory>(backend, held * base::byteSize(storage));
  fillWithZeros(backend, stream, weights_->data(), storage, held);
  gradients_ = std::make_unique<DeviceMemory>(backend, own * base::byteSize(base::DType::f32));
  clearGradients();
}

float* ParameterStore::gradients() const {
  TANDEM_ASSERT(!sharesGradients(), "the gradients are not held whole");
  return gradients_ ? reinterpret_cast<float*>(gradients_->data()) : nullptr;
}

void* ParameterStore::weightAt(std::int64_t element) const {
  TANDEM_ASSERT(!sharesWeights(), "the weights are not held whole");
  return weights_->data() + element * base::byteSize(storage_);
}

void* ParameterStore::weightOf(const sharding::OwnedRun& run) const {
  return weights_->data() + (sharesWeights() ? run.shardOffset : run.flatOffset) * base::byteSize(storage_);
}

float* ParameterStore::gradientOf(const sharding::OwnedRun& run) const {
  return reinterpret_cast<float*>(gradients_->data()) + (sharesGradients() ? run.shardOffset : run.flatOffset);
}

void* ParameterStore::weightPiece(int bucket, int rank) const {
  const std::int64_t at = sharesWeights() ? layout_.pieceShardOffset(bucket, rank) : layout_.pieceBegin(bucket, rank);
  return weights_->data() + at * base::byteSize(storage_);
}

float* ParameterStore::gradientPiece(int bucket, int rank) const {
  const std::int64_t at = sharesGradients() ? layout_.pieceShardOffset(bucket, rank) : layout_.pieceBegin(bucket, rank);
  return reinterpret_cast<float*>(gradients_->data()) + at;
}

void ParameterStore::clearGradients() {
  fillWithZeros(backend_, stream_, gradients_->data(), base::DType::f32, layout_.shardCount(shard_->rank));
}

void ParameterStore::addToGradients(int bucket, float* piece) {
  const std::int64_t count = layout_.pieceCounts(bucket)[static_cast<std::size_t>(shard_->rank)];
  if (count == 0) return;
  backend_.run(
      kernels::Axpy{.source = kernels::TensorView(piece, base::DType::f32, {count}),
                    .target = kernels::TensorView(gradientPiece(bucket, shard_->rank), base::DType::f32, {count}),
                    .factor = 1.0f},
      stream_);
}

void ParameterStore::bindTo(Executable& executable) const {
  const auto bind = [&](const std::string& name, void* memory) {
    if (executable.has(name)) executable.bind(name, memory);
  };
  for (const sharding::FlatParameter& parameter : layout_.parameters()) {
    // Parts of a shared-out bucket lie in the program's own memory; what has no elements lies nowhere.
    if (!sharesWeights() || parameter.count == 0) {
      bind(parameter.name, sharesWeights() ? weights_->data() : weightAt(parameter.offset));
    }
    const std::string gradient = graph::gradientName(parameter.name);
    if (gradients_ && (!sharesGradients() || parameter.count == 0)) {
      bind(gradient, sharesGradients() ? reinterpret_cast<float*>(gradients_->data()) : gradients() + parameter.offset);
    }
  }
  if (sharesWeights()) bind(sharding::weightShard, weights_->data());
  if (sharesGradients()) bind(sharding::gradientShard, gradients_->data());
  if (matrices_) matrices_->bindTo(executable);
}

void ParameterStore::bindRows(Executable& executable, const std::string& matrix, std::int64_t firstRow) const {
  if (matrices_ && matrices_->formats().contains(matrix)) return matrices_->bindRows(executable, matrix, firstRow);
  const std::int64_t index = layout_.indexOf(matrix);
  TANDEM_ASSERT(index >= 0, "'" + matrix + "' is not held here");
  const sharding::FlatParameter& held = layout_.parameters()[static_cast<std::size_t>(index)];
  executable.bind(matrix, weightAt(held.offset + firstRow * held.shape.last()));
}

}  // namespace tandem::runtime
