#pragma once
// The parameters of a model on one rank: flat weights that programs compute with, and flat gradients; or of these, or
// of both, only the shard that the rank owns (ZeRO stages 2 and 3), beside which programs have whole buckets of their
// own (sharding/parameter_shards.h).

#include <memory>
#include <optional>
#include <string>

#include "common/base/dtype.h"
#include "common/runtime/executable.h"
#include "common/runtime/quantised_store.h"
#include "common/sharding/flat_layout.h"

namespace tandem::runtime {

class ParameterStore {
 public:
  enum class Gradients { none, held };

  // Weights in `storage` (float32, bfloat16, float16), gradients in float32. Both start as zeros, padding included:
  // what is exchanged over padding must be a number.
  ParameterStore(const sharding::FlatLayout& layout, kernels::Backend& backend, kernels::Stream& stream,
                 base::DType storage, Gradients gradients);
  // The store of a rank of the layout that has no more than its shard of the gradients, and of the weights where it is
  // said so.
  struct Shard {
    int rank = 0;
    bool weights = false;
  };
  ParameterStore(const sharding::FlatLayout& layout, kernels::Backend& backend, kernels::Stream& stream,
                 base::DType storage, const Shard& shard);

  const sharding::FlatLayout& layout() const { return layout_; }
  base::DType storage() const { return storage_; }
  bool sharesGradients() const { return shard_.has_value(); }
  bool sharesWeights() const { return shard_ && shard_->weights; }

  // The flat buffers, of stores that hold them whole; gradients() is null without them.
  void* weights() const { return weightAt(0); }
  float* gradients() const;
  void* weightAt(std::int64_t element) const;
  // Where an owned run lies, or this rank's piece of a bucket, whatever is held.
  void* weightOf(const sharding::OwnedRun& run) const;
  float* gradientOf(const sharding::OwnedRun& run) const;
  void* weightPiece(int bucket, int rank) const;
  float* gradientPiece(int bucket, int rank) const;

  // Of a store that has a shard of the gradients: makes it zeros; adds the own piece of a bucket's sums.
  void clearGradients();
  void addToGradients(int bucket, float* piece);

  // Of all weights, quantised ones included.
  std::int64_t weightBytes() const { return weights_->bytes() + (matrices_ ? matrices_->bytes() : 0); }

  // Matrices that are held apart, quantised. Their programs have to go through prepared().
  void attach(std::shared_ptr<const QuantisedStore> matrices) { matrices_ = std::move(matrices); }
  const QuantisedStore* matrices() const { return matrices_.get(); }  // null without any
  // The program with quantised matrices where this store has some; for inference, or of frozen ones.
  graph::Program prepared(const graph::Program& program) const {
    return matrices_ ? graph::quantise(program, matrices_->formats()) : program;
  }

  // Binds every parameter, and gradient, that the program names.
  void bindTo(Executable& executable) const;
  // Binds a matrix of the program to rows of the one of that name, from `firstRow` on: of a quantised one whole blocks.
  void bindRows(Executable& executable, const std::string& matrix, std::int64_t firstRow) const;

 private:
  sharding::FlatLayout layout_;
  base::DType storage_;
  kernels::Backend& backend_;
  kernels::Stream& stream_;
  std::optional<Shard> shard_;
  std::unique_ptr<DeviceMemory> weights_;
  std::unique_ptr<DeviceMemory> gradients_;
  std::shared_ptr<const QuantisedStore> matrices_;
};

}  // namespace tandem::runtime
