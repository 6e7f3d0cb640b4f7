// A radix sort, 8 bits of the key a pass from the lowest, each pass keeping the order of equal digits. A pass is three
// kernels: blocks count the digits of their tiles; one block turns the counts, digit by digit and tile by tile, into
// places; blocks move their tiles. A vocabulary of 50 thousand takes two passes, and their time is small beside the
// summing of gradients that they serve.
//
// What counts here is that no place depends on the order in which threads run: in a warp, the lanes with equal digits
// are told apart by ballots, and warps by their number.
#include "kernels/cuda/sort_rows.h"

#include <bit>
#include <utility>

#include "kernels/cuda/reduce.h"
#include "kernels/cuda/storage.h"

namespace tandem::kernels::cuda {

namespace {

constexpr int digitBits = 8;
constexpr int digits = 1 << digitBits;
constexpr int sortThreads = digits;  // a thread a digit where counts are added up
constexpr int sortWarps = sortThreads / warpLanes;
constexpr int rounds = 4;                       // of 32 pairs that a warp takes, one after the other
constexpr int tileSize = sortThreads * rounds;  // pairs of a block
constexpr int scanThreads = 1024;

// The pairs before a pass: as the last pass left them, or the keys in their order.
struct Pairs {
  const int2* pairs;
  const std::int32_t* keys;
  std::int64_t count;
  std::int64_t first, limit;  // keys count from `first`; one outside of [first, first + limit) becomes `limit`
  int shift;                  // of this pass's digit

  __device__ __forceinline__ int2 at(std::int64_t i) const {
    if (pairs != nullptr) return pairs[i];
    const std::int64_t key = keys[i] - first;
    return make_int2(static_cast<int>(key >= 0 && key < limit ? key : limit), static_cast<int>(i));
  }
  __device__ __forceinline__ int digit(int key) const { return (key >> shift) & (digits - 1); }
};

// The place of round `round` of this lane in the block's tile: each warp has a run of the tile, so that warps, rounds
// and lanes are in the pairs' order.
__device__ __forceinline__ std::int64_t placeInTile(int round) {
  const int warp = static_cast<int>(threadIdx.x) / warpLanes, lane = static_cast<int>(threadIdx.x) % warpLanes;
  return static_cast<std::int64_t>(blockIdx.x) * tileSize + (warp * rounds + round) * warpLanes + lane;
}

// counts[digit][block]. Integer sums are the same in any order.
__global__ void __launch_bounds__(sortThreads) countDigitsKernel(Pairs in, int* counts) {
  SHARED_ARRAY(int, own, [digits]);
  own[threadIdx.x] = 0;
  __syncthreads();
  for (int round = 0; round < rounds; ++round) {
    const std::int64_t i = placeInTile(round);
    if (i < in.count) atomicAdd(&own[in.digit(in.at(i).x)], 1);
  }
  __syncthreads();
  counts[static_cast<std::int64_t>(threadIdx.x) * gridDim.x + blockIdx.x] = own[threadIdx.x];
}

// The sum of the values of all lanes before this one; `total` is that of the whole warp.
__device__ __forceinline__ int sumBefore(int value, int& total) {
  const int lane = static_cast<int>(threadIdx.x) % warpLanes;
  int sum = value;
#pragma unroll
  for (int distance = 1; distance < warpLanes; distance *= 2) {
    const int other = __shfl_up_sync(allLanes, sum, static_cast<unsigned>(distance));
    if (lane >= distance) sum += other;
  }
  total = __shfl_sync(allLanes, sum, warpLanes - 1);
  return sum - value;
}

// Replaces each count by the sum of those before it. One block; 256 counts for every 1024 rows are few.
__global__ void __launch_bounds__(scanThreads) scanKernel(int* counts, std::int64_t count) {
  SHARED_ARRAY(int, warpTotals, [warpLanes]);
  const int warp = static_cast<int>(threadIdx.x) / warpLanes, lane = static_cast<int>(threadIdx.x) % warpLanes;
  int carry = 0;
  for (std::int64_t begin = 0; begin < count; begin += scanThreads) {
    const std::int64_t i = begin + threadIdx.x;
    const int value = i < count ? counts[i] : 0;
    int total, all;
    const int inWarp = sumBefore(value, total);
    if (lane == 0) warpTotals[warp] = total;
    __syncthreads();
    const int before = sumBefore(warpTotals[lane], all);
    const int place = carry + __shfl_sync(allLanes, before, warp) + inWarp;
    if (i < count) counts[i] = place;
    carry += all;
    __syncthreads();  // warpTotals are written again
  }
}

// The lanes of the warp that have this lane's digit, among those that have one.
__device__ __forceinline__ unsigned lanesWith(int digit, bool exists) {
  unsigned same = __ballot_sync(allLanes, exists);
#pragma unroll
  for (int bit = 0; bit < digitBits; ++bit) {
    const unsigned set = __ballot_sync(allLanes, (digit >> bit) & 1);
    same &= (digit >> bit) & 1 ? set : ~set;
  }
  return same;
}

__global__ void __launch_bounds__(sortThreads) movePairsKernel(Pairs in, const int* places, int2* out) {
  SHARED_ARRAY(int, counts, [sortWarps][digits]);  // of each warp; then where it begins to write
  const int warp = static_cast<int>(threadIdx.x) / warpLanes, lane = static_cast<int>(threadIdx.x) % warpLanes;
  for (int w = 0; w < sortWarps; ++w) counts[w][threadIdx.x] = 0;
  __syncthreads();

  int2 pair[rounds];
  int rank[rounds];  // among the warp's pairs of the same digit
#pragma unroll
  for (int round = 0; round < rounds; ++round) {
    const std::int64_t i = placeInTile(round);
    const bool exists = i < in.count;
    pair[round] = exists ? in.at(i) : make_int2(0, 0);
    const int digit = in.digit(pair[round].x);
    const unsigned same = lanesWith(digit, exists);
    const int before = __popc(same & ((1u << lane) - 1));
    rank[round] = counts[warp][digit] + before;
    __syncwarp();  // all lanes have read
    if (exists && before == 0) counts[warp][digit] += __popc(same);
    __syncwarp();
  }
  __syncthreads();
  int place = places[static_cast<std::int64_t>(threadIdx.x) * gridDim.x + blockIdx.x];
  for (int w = 0; w < sortWarps; ++w) {
    const int ofWarp = counts[w][threadIdx.x];
    counts[w][threadIdx.x] = place;
    place += ofWarp;
  }
  __syncthreads();
#pragma unroll
  for (int round = 0; round < rounds; ++round) {
    if (placeInTile(round) < in.count) out[counts[warp][in.digit(pair[round].x)] + rank[round]] = pair[round];
  }
}

}  // namespace

const int2* sortRows(const SortKeys& keys, Context& context) {
  const std::int64_t count = keys.count;
  const std::int64_t tiles = ceilDivide(count, tileSize);
  // One piece of scratch: two rooms for the pairs, then the counts.
  auto* pairs = context.scratch.get<int2>(0, 2 * count + ceilDivide(tiles * digits, 2));
  int2 *to = pairs, *other = pairs + count;
  int* counts = reinterpret_cast<int*>(pairs + 2 * count);
  Pairs in{nullptr, keys.keys, count, keys.first, keys.limit, 0};
  const Grid grid(dim3(static_cast<unsigned>(tiles)), dim3(sortThreads), 0, context.stream);
  const std::int64_t largest = keys.mayBeOutside ? keys.limit : keys.limit - 1;
  const int bits = std::bit_width(static_cast<std::uint64_t>(largest > 1 ? largest : 1));
  for (in.shift = 0; in.shift < bits; in.shift += digitBits) {
    check(launch<countDigitsKernel>(grid, in, counts), "sorting rows by token");
    check(launch<scanKernel>({dim3(1), dim3(scanThreads), 0, context.stream}, counts, tiles * digits),
          "sorting rows by token");
    check(launch<movePairsKernel>(grid, in, static_cast<const int*>(counts), to), "sorting rows by token");
    in.pairs = to;
    std::swap(to, other);
  }
  return in.pairs;
}

}  // namespace tandem::kernels::cuda
