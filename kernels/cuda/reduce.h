#pragma once
// Sums and maxima over the lanes of a warp and the threads of a block, in an order that depends on nothing but the
// shape of the block: the same bits on each run.

#include "kernels/cuda/launch.h"

namespace tandem::kernels::cuda {

inline constexpr int warpLanes = 32;
inline constexpr unsigned allLanes = 0xffffffffu;

// Over the `lanes` neighbours (a power of two up to 32) that a lane belongs to; each gets the result. All lanes of the
// warp take part.
template <int lanes = warpLanes, class T>
__device__ __forceinline__ T warpSum(T value) {
#pragma unroll
  for (int distance = lanes / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(allLanes, value, distance);
  return value;
}

// As fmaxf: of a number and a NaN the number.
template <int lanes = warpLanes>
__device__ __forceinline__ float warpMax(float value) {
#pragma unroll
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(allLanes, value, distance));
  }
  return value;
}

// Sums of several values over a one-dimensional block of `threads` threads (a multiple of 32), all of which call this;
// each gets the sums. The first barrier keeps a call's writes from the reads of the call before.
template <int threads, int count, class T>
__device__ __forceinline__ void blockSums(T (&values)[count]) {
  constexpr int warps = threads / warpLanes;
  static_assert(warps * warpLanes == threads && warps <= warpLanes);
#pragma unroll
  for (int i = 0; i < count; ++i) values[i] = warpSum(values[i]);
  if constexpr (warps > 1) {
    SHARED_ARRAY(T, parts, [count][warps]);
    __syncthreads();
    if (threadIdx.x % warpLanes == 0) {
#pragma unroll
      for (int i = 0; i < count; ++i) parts[i][threadIdx.x / warpLanes] = values[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < count; ++i) {
      T sum = parts[i][0];
      for (int warp = 1; warp < warps; ++warp) sum += parts[i][warp];
      values[i] = sum;
    }
  }
}

template <int threads, class T>
__device__ __forceinline__ T blockSum(T value) {
  T values[1] = {value};
  blockSums<threads>(values);
  return values[0];
}

// The maximum over a block, under the same conditions; as fmaxf.
template <int threads>
__device__ __forceinline__ float blockMax(float value) {
  constexpr int warps = threads / warpLanes;
  static_assert(warps * warpLanes == threads && warps <= warpLanes);
  value = warpMax(value);
  if constexpr (warps > 1) {
    SHARED_ARRAY(float, parts, [warps]);
    __syncthreads();
    if (threadIdx.x % warpLanes == 0) parts[threadIdx.x / warpLanes] = value;
    __syncthreads();
    value = parts[0];
    for (int warp = 1; warp < warps; ++warp) value = fmaxf(value, parts[warp]);
  }
  return value;
}

}  // namespace tandem::kernels::cuda
