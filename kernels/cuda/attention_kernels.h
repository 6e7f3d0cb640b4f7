#pragma once
// The kernels that attention.cpp chooses among. Each enqueues on the context's stream.

#include "kernels/cuda/operators.h"

namespace tandem::kernels::cuda {

// On the tensor cores. Only for calls without an obstacle (attention.cpp).
void flashForward(const Attention& call, Context& context);
void flashBackward(const AttentionBackward& call, Context& context);
// Of the fresh tokens of a call whose keys and values are in the cache already.
void flashOverCache(const CachedAttention& call, Context& context);

// A warp a query or key: any type and any head size up to 256.
void plainForward(const Attention& call, Context& context);
void plainBackward(const AttentionBackward& call, Context& context);

// Few fresh tokens over a long cache: the cache is split over blocks, whose results are then combined.
void extendCache(const CachedAttention& call, Context& context);
void splitOverCache(const CachedAttention& call, Context& context);
// The same call over caches of numbers, of which those in 8 bits are made in the scratch.
CachedAttention withNumbers(const CachedAttention& call, Context& context);

// deltas[batch, head, time] = gradOutput . output of each query, as both backward passes want it.
void attentionDeltas(const AttentionBackward& call, float* deltas, Context& context);

// Whether all rows of a strided view [.., .., .., headSize] do, so that 16 bytes can be moved at a time.
bool rowsLieAtMultiplesOf16Bytes(const ConstTensorView& view);

// Whether queries and keys are those of one whole row.
template <class Call>
bool isWholeRow(const Call& call) {
  return call.firstQuery == 0 && call.firstKey == 0 && call.query.shape[1] == call.key.shape[1];
}

constexpr std::int64_t largestHeadSize = 256;

}  // namespace tandem::kernels::cuda
