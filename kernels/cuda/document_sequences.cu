// Finding the documents of a batch: a block a row counts the beginnings in the rows before its own, which lie in the L2
// cache, and then numbers those of its own; so that one launch does it, and nothing is left over from another.
#include "kernels/cuda/document_sequences.h"

#include <algorithm>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/storage.h"

namespace tandem::kernels::cuda {

namespace {

constexpr int threads = 256;
constexpr int warps = threads / warpLanes;

__global__ void __launch_bounds__(threads)
    startsKernel(const std::int32_t* documentStart, int time, int capacity, std::int32_t* starts) {
  SHARED_ARRAY(int, begun, [warps]);
  const int row = static_cast<int>(blockIdx.x), first = row * time;
  const int warp = static_cast<int>(threadIdx.x) / warpLanes;
  int before = 0;
  for (int token = static_cast<int>(threadIdx.x); token < first; token += threads) {
    before += documentStart[token] == token % time;
  }
  int number = blockSum<threads>(before);
  for (int chunk = 0; chunk < time; chunk += threads) {
    const int place = chunk + static_cast<int>(threadIdx.x);
    const bool begins = place < time && documentStart[first + place] == place;
    const unsigned lanes = __ballot_sync(allLanes, begins);
    __syncthreads();  // nobody reads the counts of the chunk before any more
    if (threadIdx.x % warpLanes == 0) begun[warp] = __popc(lanes);
    __syncthreads();
    int own = number + __popc(lanes & ((1u << (threadIdx.x % warpLanes)) - 1u));
    for (int other = 0; other < warps; ++other) {
      if (other < warp) own += begun[other];
      number += begun[other];
    }
    if (begins && own < capacity) starts[own] = first + place;
  }
  if (blockIdx.x + 1 < gridDim.x) return;
  for (int place = number + static_cast<int>(threadIdx.x); place <= capacity; place += threads) {
    starts[place] = first + time;
  }
  if (threadIdx.x == 0 && number > capacity) starts[capacity] = first + time;
}

// DocumentTables as a kernel takes them.
struct Offsets {
  const std::int32_t* starts;
  std::int32_t *offsets, *lengths;
  std::int64_t strides[DocumentTables::largestTensors];
  std::int64_t capacity;
  int tensors;
};

__global__ void __launch_bounds__(threads) offsetsKernel(Offsets tables) {
  const std::int64_t place = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (place > tables.capacity) return;
  const std::int32_t start = tables.starts[place];
  for (int tensor = 0; tensor < tables.tensors; ++tensor) {
    tables.offsets[tensor * (tables.capacity + 1) + place] = static_cast<std::int32_t>(start * tables.strides[tensor]);
  }
  if (place < tables.capacity) tables.lengths[place] = tables.starts[place + 1] - start;
}

template <bool toTokens>
__global__ void __launch_bounds__(threads)
    swapKernel(const float* from, float* to, std::int64_t count, std::int64_t heads, std::int64_t time) {
  const std::int64_t byToken = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (byToken >= count) return;
  const std::int64_t head = byToken % heads, token = byToken / heads;
  const std::int64_t byHead = (token / time * heads + head) * time + token % time;
  if constexpr (toTokens) {
    to[byToken] = from[byHead];
  } else {
    to[byHead] = from[byToken];
  }
}

template <bool toTokens>
void swapHeadsAndTokens(const float* from, float* to, const Shape& shape, Context& context) {
  const std::int64_t count = shape.count();
  check(launch<swapKernel<toTokens>>({static_cast<unsigned>(ceilDivide(count, threads)), threads, 0, context.stream},
                                     from, to, count, shape[1], shape[2]),
        "Attention, statistics");
}

}  // namespace

void fillTables(const ConstTensorView& documentStart, const DocumentTables& tables, Context& context) {
  check(launch<startsKernel>({static_cast<unsigned>(documentStart.shape[0]), threads, 0, context.stream},
                             static_cast<const std::int32_t*>(documentStart.data),
                             static_cast<int>(documentStart.shape[1]), static_cast<int>(tables.capacity),
                             tables.starts()),
        "Attention, documents");
  Offsets offsets{.starts = tables.starts(),
                  .offsets = tables.offsets(0),
                  .lengths = tables.lengths(),
                  .strides = {},
                  .capacity = tables.capacity,
                  .tensors = tables.tensors};
  std::copy(tables.strides.begin(), tables.strides.end(), offsets.strides);
  check(launch<offsetsKernel>(
            {static_cast<unsigned>(ceilDivide(tables.capacity + 1, threads)), threads, 0, context.stream}, offsets),
        "Attention, documents");
}

void headsToTokens(const float* byHead, float* byToken, const Shape& batchHeadsTime, Context& context) {
  swapHeadsAndTokens<true>(byHead, byToken, batchHeadsTime, context);
}

void tokensToHeads(const float* byToken, float* byHead, const Shape& batchHeadsTime, Context& context) {
  swapHeadsAndTokens<false>(byToken, byHead, batchHeadsTime, context);
}

}  // namespace tandem::kernels::cuda
