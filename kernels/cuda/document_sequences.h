#pragma once
// Documents packed into rows, as libraries with sequences of varying length see them: one sequence a document, the rows
// of a batch read one after the other.

#include <array>

#include "kernels/cuda/operators.h"

namespace tandem::kernels::cuda {

// What such a library wants in memory of the device, for places 0 .. capacity - 1: how many tokens document i has, and
// in each tensor where it begins, in elements. Places beyond the documents have length 0 and begin at the end.
struct DocumentTables {
  static constexpr int largestTensors = 10;
  std::int64_t capacity = 0;
  std::array<std::int64_t, largestTensors> strides{};  // from token to token, of each tensor
  int tensors = 0;
  std::int32_t* memory = nullptr;  // of count() elements

  std::int64_t count() const { return (tensors + 1) * (capacity + 1) + capacity; }
  std::int32_t* starts() const { return memory; }                                             // [capacity + 1], tokens
  std::int32_t* offsets(int tensor) const { return memory + (tensor + 1) * (capacity + 1); }  // [capacity + 1]
  std::int32_t* lengths() const { return offsets(tensors); }                                  // [capacity]
};

// From documentStart [batch, time] of kernels::Attention. A batch of more than `capacity` documents loses the last.
void fillTables(const ConstTensorView& documentStart, const DocumentTables& tables, Context& context);

// Statistics by row and head, [batch, heads, time], to those by token, [batch, time, heads], and back.
void headsToTokens(const float* byHead, float* byToken, const Shape& batchHeadsTime, Context& context);
void tokensToHeads(const float* byToken, float* byHead, const Shape& batchHeadsTime, Context& context);

}  // namespace tandem::kernels::cuda
