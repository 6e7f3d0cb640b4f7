#pragma once
// Tiles of head rows in shared memory, and products of them on the tensor cores: what the flash kernels are made of.
//
// A tile has `size` 16-bit elements a row in chunks of 16 bytes. ldmatrix reads the same chunk of eight neighbouring
// rows at once, which have to lie in eight different groups of four banks: the place of a chunk is its number with some
// bits of the row's number exclusive-ored in, so many that eight rows meet all eight groups whatever the row's length.
//
// Names of mma's operands: product[16 x 8] += left[16 x 16] right[16 x 8]; lane = 4 g + t holds of a product the rows g
// and g + 8, columns 2t and 2t + 1 (ptx.h has the layouts).

#include "kernels/cuda/attention_heads.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/reduce.h"

namespace tandem::kernels::cuda {

// Two floats as the two halves of a register, rounded to nearest.
template <class T>
__device__ __forceinline__ std::uint32_t packed(float low, float high) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  }
}

template <class T>
__device__ __forceinline__ void multiply(float (&product)[4], const std::uint32_t (&left)[4], std::uint32_t right0,
                                         std::uint32_t right1) {
  const std::uint32_t right[2] = {right0, right1};
  if constexpr (std::is_same_v<T, __half>) {
    ptx::mma_m16n8k16_f16(product, left, right);
  } else {
    ptx::mma_m16n8k16_bf16(product, left, right);
  }
}

// Which lane of a fragment this thread is.
struct FragmentLane {
  int lane = static_cast<int>(threadIdx.x) % warpLanes;
  int g = lane / 4, t = lane % 4;
};

template <class T, int size>
struct Tile {
  static constexpr int chunks = size / 8;
  static_assert(size % 16 == 0 && sizeof(T) == 2);
  // Rows that lie in different groups of banks anyway do not need the exclusive or.
  static constexpr unsigned spread = chunks % 8 == 0 ? 8 : chunks % 4 == 0 ? 4 : 2;
  static constexpr unsigned apart = 8 / spread;

  T* data;

  // Eight rows further on the exclusive or is the same again: `rows`, a multiple of eight, only adds to the address.
  __device__ __forceinline__ T* at(int rows, unsigned row, unsigned chunk) const {
    return data + rows * size + (row * chunks + (chunk ^ (row / apart & (spread - 1)))) * 8;
  }

  // Begins to copy rows [first, first + rows) of a head by all threads of the block; those from `end` on become zeros.
  template <int rows, int threads>
  __device__ __forceinline__ void copy(const T* head, std::int64_t stride, int first, int end) const {
    constexpr int lanes = chunks <= 8 ? 8 : 16, rowsAtOnce = threads / lanes;
    static_assert(rowsAtOnce % 8 == 0 && rows % rowsAtOnce == 0 && chunks <= lanes);
    const unsigned row = threadIdx.x / lanes, chunk = threadIdx.x % lanes;
    if (chunk >= chunks) return;
#pragma unroll
    for (int at0 = 0; at0 < rows; at0 += rowsAtOnce) {
      const int from = first + at0 + static_cast<int>(row);
      ptx::cp_async_16(at(at0, row, chunk), head + (from < end ? from : 0) * stride + chunk * 8, from < end);
    }
  }

  // Rows [row, row + 16), columns [16 k, 16 k + 16), as a left operand. Here and below rows are multiples of eight.
  __device__ __forceinline__ void left(std::uint32_t (&operand)[4], int row, unsigned k) const {
    const unsigned lane = threadIdx.x % warpLanes;
    ptx::ldmatrix_x4(operand, at(row, lane % 16, 2 * k + lane / 16));
  }
  // The transpose of the same as right operands of two products, of the rows [row, row + 8) and the eight after them.
  __device__ __forceinline__ void rightOfRows(std::uint32_t (&operands)[4], int row, unsigned k) const {
    const unsigned lane = threadIdx.x % warpLanes;
    ptx::ldmatrix_x4(operands, at(row, lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
  }
  // Rows [row, row + 16) as right operands of two products, of the columns of `chunk` and of the chunk after it.
  __device__ __forceinline__ void rightOfColumns(std::uint32_t (&operands)[4], int row, unsigned chunk) const {
    const unsigned lane = threadIdx.x % warpLanes;
    ptx::ldmatrix_x4_trans(operands, at(row, lane / 8 % 2 * 8 + lane % 8, chunk + lane / 16));
  }
};

// Rows [row, row + 16) of a head as left operands straight from memory; rows from `end` on are zeros.
template <class T, int size>
__device__ __forceinline__ void loadLeft(std::uint32_t (&left)[size / 16][4], const T* head, std::int64_t stride,
                                         int row, int end) {
  const FragmentLane at;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int own = row + at.g + 8 * half;
    const T* from = head + (own < end ? own : 0) * stride + 2 * at.t;
#pragma unroll
    for (int k = 0; k < size / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        left[k][half + 2 * i] = own < end ? *reinterpret_cast<const std::uint32_t*>(from + 16 * k + 8 * i) : 0;
      }
    }
  }
}

// The products of rows [row, row + 16) to a head's memory, each of the lane's two rows times its factor.
template <class T, int size>
__device__ __forceinline__ void storeProducts(const float (&products)[size / 8][4], const float (&factors)[2], T* head,
                                              std::int64_t stride, int row, int end) {
  const FragmentLane at;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int own = row + at.g + 8 * half;
    if (own >= end) continue;
    T* to = head + own * stride + 2 * at.t;
#pragma unroll
    for (int n = 0; n < size / 8; ++n) {
      *reinterpret_cast<std::uint32_t*>(to + 8 * n) =
          packed<T>(products[n][2 * half] * factors[half], products[n][2 * half + 1] * factors[half]);
    }
  }
}

// products += left right^T: dots of rows, `rows` of them of the right tile.
template <class T, int size, int rowTiles, int rows>
__device__ __forceinline__ void addDots(float (&products)[rowTiles][rows / 8][4],
                                        const std::uint32_t (&left)[rowTiles][size / 16][4],
                                        const Tile<T, size>& right) {
#pragma unroll
  for (int k = 0; k < size / 16; ++k) {
#pragma unroll
    for (int n = 0; n < rows / 8; n += 2) {
      std::uint32_t operands[4];
      right.rightOfRows(operands, 8 * n, k);
#pragma unroll
      for (int m = 0; m < rowTiles; ++m) {
        multiply<T>(products[m][n], left[m][k], operands[0], operands[1]);
        multiply<T>(products[m][n + 1], left[m][k], operands[2], operands[3]);
      }
    }
  }
}

// The same with the left rows [row, row + 16) in shared memory too, where registers are short.
template <class T, int size, int rows>
__device__ __forceinline__ void addDotsOfTiles(float (&products)[rows / 8][4], const Tile<T, size>& leftTile, int row,
                                               const Tile<T, size>& right) {
#pragma unroll
  for (int k = 0; k < size / 16; ++k) {
    std::uint32_t left[4];
    leftTile.left(left, row, k);
#pragma unroll
    for (int n = 0; n < rows / 8; n += 2) {
      std::uint32_t operands[4];
      right.rightOfRows(operands, 8 * n, k);
      multiply<T>(products[n], left, operands[0], operands[1]);
      multiply<T>(products[n + 1], left, operands[2], operands[3]);
    }
  }
}

// Products of one multiplication as left operands of the next: their layouts are the same, two products side by side.
template <class T, int columns>
__device__ __forceinline__ void packLeft(std::uint32_t (&left)[columns / 16][4],
                                         const float (&products)[columns / 8][4]) {
#pragma unroll
  for (int k = 0; k < columns / 16; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      left[k][i] = packed<T>(products[2 * k + i / 2][i % 2 * 2], products[2 * k + i / 2][i % 2 * 2 + 1]);
    }
  }
}

// sums += weights tile, over the tile's `rows` rows.
template <class T, int size, int rowTiles, int rows>
__device__ __forceinline__ void addWeighted(float (&sums)[rowTiles][size / 8][4],
                                            const std::uint32_t (&weights)[rowTiles][rows / 16][4],
                                            const Tile<T, size>& tile) {
#pragma unroll
  for (int k = 0; k < rows / 16; ++k) {
#pragma unroll
    for (int n = 0; n < size / 8; n += 2) {
      std::uint32_t operands[4];
      tile.rightOfColumns(operands, 16 * k, n);
#pragma unroll
      for (int m = 0; m < rowTiles; ++m) {
        multiply<T>(sums[m][n], weights[m][k], operands[0], operands[1]);
        multiply<T>(sums[m][n + 1], weights[m][k], operands[2], operands[3]);
      }
    }
  }
}

// Calls body with a head size that the tiles are built for, as a constant.
template <class Body>
void withTileSize(std::int64_t size, Body&& body) {
  switch (size) {
    case 64:
      return body(std::integral_constant<int, 64>{});
    case 80:
      return body(std::integral_constant<int, 80>{});
    case 96:
      return body(std::integral_constant<int, 96>{});
    default:
      TANDEM_ASSERT(size == 128, "the flash kernels are not built for heads of " + std::to_string(size));
      return body(std::integral_constant<int, 128>{});
  }
}

// Calls body with the 16-bit element type.
template <class Body>
void withHalf(DType type, Body&& body) {
  if (type == DType::f16) return body(__half{});
  TANDEM_ASSERT(type == DType::bf16, "the flash kernels take 16-bit types");
  body(__nv_bfloat16{});
}

}  // namespace tandem::kernels::cuda
