#pragma once
// Operands of attention on a backend, its passes over them, and what tests ask of a call.

#include <gtest/gtest.h>

#include <bit>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/base/random.h"
#include "kernels/backend.h"
#include "kernels/cuda/storage.h"

namespace tandem::kernels::cuda {

struct Call {
  std::int64_t time = 20, heads = 2, kvHeads = 1, size = 64;
  DType type = DType::bf16;
  std::int64_t shift = 0;  // elements that all operands miss an aligned address by
  std::int64_t rows = 1;
  std::vector<std::int32_t> documentStart;  // of each row; empty: one document
  std::int64_t documents = 0;               // as the kernels are told
};

inline double stored(DType type, double value) {
  const auto single = static_cast<float>(value);
  if (type == DType::bf16) return static_cast<double>(toFloat(fromFloat<__nv_bfloat16>(single)));
  return static_cast<double>(type == DType::f16 ? toFloat(fromFloat<__half>(single)) : single);
}

// Operands of a forward and a backward pass on a backend, drawn alike for every backend.
class Passes {
 public:
  Passes(Backend& backend, const Call& call, DType drawnAs)
      : backend_(backend), call_(call), stream_(backend.makeStream()) {
    const std::int64_t q = call.heads, k = call.kvHeads;
    for (const std::int64_t heads : {q, k, k, q, q, q, k, k}) views_.push_back(tensor(heads, drawnAs));
    const std::int64_t tokens = call.rows * call.time;
    documentStart_ = TensorView(allocate(tokens * 4), DType::i32, {call.rows, call.time});
    std::vector<std::int32_t> starts = call.documentStart;
    starts.resize(static_cast<std::size_t>(call.time));
    for (std::int64_t row = 0; row < call.rows; ++row) {
      backend.copyToDevice(static_cast<std::int32_t*>(documentStart_.data) + row * call.time, starts.data(),
                           call.time * 4, *stream_);
    }
    logSumExp_ = TensorView(allocate(q * tokens * 4), DType::f32, {call.rows, q, call.time});
    stream_->synchronize();
  }
  ~Passes() {
    for (void* memory : memories_) backend_.release(memory);
  }
  Passes(const Passes&) = delete;
  Passes& operator=(const Passes&) = delete;

  void forward() {
    backend_.run(Attention{.query = views_[0],
                           .key = views_[1],
                           .value = views_[2],
                           .documentStart = documentStart_,
                           .window = 0,
                           .scale = 0.125f,
                           .output = views_[4],
                           .logSumExp = logSumExp_,
                           .documents = call_.documents},
                 *stream_);
    stream_->synchronize();
  }
  void backward() {
    backend_.run(AttentionBackward{.query = views_[0],
                                   .key = views_[1],
                                   .value = views_[2],
                                   .documentStart = documentStart_,
                                   .output = views_[4],
                                   .logSumExp = logSumExp_,
                                   .gradOutput = views_[3],
                                   .window = 0,
                                   .scale = 0.125f,
                                   .gradQuery = views_[5],
                                   .gradKey = views_[6],
                                   .gradValue = views_[7],
                                   .documents = call_.documents},
                 *stream_);
    stream_->synchronize();
  }
  // The fresh tokens alone, over an empty cache as long as they.
  void overCache() {
    const Shape shape = {1, call_.kvHeads, call_.time, call_.size};
    const std::int64_t bytes = shape.count() * base::byteSize(call_.type);
    const TensorView keys(allocate(bytes), call_.type, shape), values(allocate(bytes), call_.type, shape);
    const TensorView lengths(allocate(4), DType::i32, {1});
    const std::int32_t none = 0;
    backend_.copyToDevice(lengths.data, &none, 4, *stream_);
    backend_.run(CachedAttention{.query = views_[0],
                                 .key = views_[1],
                                 .value = views_[2],
                                 .lengths = lengths,
                                 .keyCache = keys,
                                 .valueCache = values,
                                 .window = 0,
                                 .scale = 0.125f,
                                 .output = views_[4]},
                 *stream_);
    stream_->synchronize();
  }
  const TensorView& documentStart() const { return documentStart_; }
  Stream& stream() { return *stream_; }
  // Output and the three gradients.
  std::vector<double> results() {
    std::vector<double> all;
    for (const std::size_t view : {4u, 5u, 6u, 7u}) {
      const auto count = static_cast<std::size_t>(views_[view].shape.count());
      std::vector<std::uint16_t> halves(count);
      std::vector<float> singles(count);
      void* to = call_.type == DType::f32 ? static_cast<void*>(singles.data()) : halves.data();
      backend_.copyToHost(to, views_[view].data, static_cast<std::int64_t>(count) * base::byteSize(call_.type),
                          *stream_);
      stream_->synchronize();
      for (std::size_t i = 0; i < count; ++i) {
        if (call_.type == DType::f32) all.push_back(static_cast<double>(singles[i]));
        if (call_.type == DType::bf16)
          all.push_back(static_cast<double>(toFloat(std::bit_cast<__nv_bfloat16>(halves[i]))));
        if (call_.type == DType::f16) all.push_back(static_cast<double>(toFloat(std::bit_cast<__half>(halves[i]))));
      }
    }
    return all;
  }

 private:
  void* allocate(std::int64_t bytes) { return memories_.emplace_back(backend_.allocate(bytes)); }
  TensorView tensor(std::int64_t heads, DType drawnAs) {
    const Shape shape = {call_.rows, call_.time, heads, call_.size};
    const auto count = static_cast<std::size_t>(shape.count());
    base::RandomStream random(3, views_.size());
    std::vector<float> singles(count);
    std::vector<std::uint16_t> halves(count);
    for (std::size_t i = 0; i < count; ++i) {
      singles[i] = static_cast<float>(stored(drawnAs, static_cast<double>(random.nextNormal())));
      halves[i] = call_.type == DType::f16 ? std::bit_cast<std::uint16_t>(fromFloat<__half>(singles[i]))
                                           : std::bit_cast<std::uint16_t>(fromFloat<__nv_bfloat16>(singles[i]));
    }
    const std::int64_t size = base::byteSize(call_.type), bytes = shape.count() * size;
    void* memory = static_cast<std::byte*>(allocate(bytes + call_.shift * size)) + call_.shift * size;
    backend_.copyToDevice(memory, call_.type == DType::f32 ? static_cast<const void*>(singles.data()) : halves.data(),
                          bytes, *stream_);
    stream_->synchronize();
    return TensorView(memory, call_.type, shape);
  }

  Backend& backend_;
  Call call_;
  std::unique_ptr<Stream> stream_;
  std::vector<void*> memories_;
  std::vector<TensorView> views_;  // query, key, value, gradOutput, output, gradQuery, gradKey, gradValue
  TensorView documentStart_, logSumExp_;
};

// Whether the tensor cores ran, from the reads of their fragments.
inline bool readsFragments(const std::function<void()>& run) {
  simt::reset_stats();
  run();
  return simt::stats().ldmatrix_phases > 0;
}

// The message of the usage error that the work must end in; a failure of the test, and "", where it does not.
inline std::string refusal(const std::function<void()>& run) {
  try {
    run();
  } catch (const base::Error& error) {
    EXPECT_EQ(error.kind(), base::ErrorKind::usage);
    return error.message();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

}  // namespace tandem::kernels::cuda
