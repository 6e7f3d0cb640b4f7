#pragma once
// One pass over flat runs of elements: the kernel behind all operators whose result i depends on elements i alone.
//
// Such an operator is a struct with
//   static constexpr int vectors;                       // vectors of N elements that a thread has in flight
//   template <int N> struct Values { float x[N]; };     // what a thread has read
//   template <int N> void read(int64 at, Values<N>&)    // elements at .. at + N - 1
//   template <int N> void write(int64 at, Values<N>&)
// Memory bounds them. All vectors of a thread are read before the first is written, since the compiler may not move a
// load above a store that could hit it (operators work in place). Blocks are many and short instead of few with loops:
// the hardware then evens out what is left at the end.

#include <algorithm>

#include "kernels/cuda/device.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/storage.h"

namespace tandem::kernels::cuda {

inline constexpr int flatThreads = 256;

template <class Operator, int N>
__global__ void __launch_bounds__(flatThreads) flatKernel(Operator work, std::int64_t count) {
  constexpr int vectors = Operator::vectors;
  const std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * vectors * flatThreads + threadIdx.x) * N;
  typename Operator::template Values<N> values[vectors];
#pragma unroll
  for (int v = 0; v < vectors; ++v) {
    const std::int64_t at = first + v * flatThreads * N;
    if (at + N <= count) work.template read<N>(at, values[v]);
  }
#pragma unroll
  for (int v = 0; v < vectors; ++v) {
    const std::int64_t at = first + v * flatThreads * N;
    if (at + N <= count) work.template write<N>(at, values[v]);
  }
  if constexpr (N > 1) {  // the elements behind the last whole vector
    const std::int64_t at = count / N * N + threadIdx.x;
    if (blockIdx.x == 0 && at < count) {
      typename Operator::template Values<1> value;
      work.template read<1>(at, value);
      work.template write<1>(at, value);
    }
  }
}

// Runs it over `count` elements, N at once if `aligned`.
template <int N, class Operator>
void runFlat(const Operator& work, std::int64_t count, bool aligned, const char* operatorName, cudaStream_t stream) {
  if (count == 0) return;
  withVector<N>(aligned, [&](auto vector) {
    constexpr int n = decltype(vector)::value;
    const std::int64_t blocks = ceilDivide(count, n * Operator::vectors * flatThreads);
    check(launch<flatKernel<Operator, n>>({dim3(static_cast<unsigned>(blocks)), dim3(flatThreads), 0, stream}, work,
                                          count),
          operatorName);
  });
}

}  // namespace tandem::kernels::cuda
