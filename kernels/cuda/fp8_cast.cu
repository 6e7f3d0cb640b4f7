// 16-bit tensors to 8-bit operands, bound by memory: each thread moves 16 bytes at a time, and a transposed operand
// goes through a tile in shared memory, so that its rows are written as they lie.
#include "kernels/cuda/fp8_cast.h"

#include <cuda_fp8.h>

#include <algorithm>
#include <cfloat>
#include <type_traits>
#include <utility>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/storage.h"

namespace tandem::kernels::cuda {

namespace {

constexpr int threads = 256;
constexpr int pieceElements = 8;  // 16 bytes of the source
constexpr int tileSide = 64;
constexpr int tilePitch = tileSide + 4;  // bytes; in words an odd number, which spreads columns over the banks
constexpr std::int64_t headBytes = 256;  // in front of an operand

// What lies in front of an operand.
struct Head {
  float inverse;     // of the scale that it was made with: what a product multiplies by
  unsigned largest;  // bits of its largest absolute value; only where there is no scale yet
};

// Floats that are not negative are ordered as their bits are. Of equal maxima any order gives the same bits.
__device__ __forceinline__ void raise(unsigned* bits, float value) { atomicMax(bits, __float_as_uint(value)); }

__device__ __forceinline__ float magnitude(float value) { return fabsf(value); }

template <fp8::Format format>
constexpr float largestOf = fp8::largestValue(format);

// As fp8::scaleFor.
template <fp8::Format format>
__device__ __forceinline__ float ownScale(float largest) {
  if (!(largest > 0) || largest > FLT_MAX) return 1;
  const float ratio = largestOf<format> / largest;
  const int exponent = static_cast<int>(__float_as_uint(ratio) >> 23) - 127;
  return __uint_as_float(static_cast<unsigned>((exponent > 126 ? 126 : exponent) + 127) << 23);
}

template <fp8::Format format>
__device__ __forceinline__ float scaleOf(const float* scale, const Head* head) {
  return *scale > 0 ? *scale : ownScale<format>(__uint_as_float(head->largest));
}

template <fp8::Format format>
__device__ __forceinline__ unsigned char toFp8(float value) {
  return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, format == fp8::Format::e4m3 ? __NV_E4M3 : __NV_E5M2);
}

template <class T>
__global__ void __launch_bounds__(threads)
    largestKernel(const T* from, std::int64_t pieces, const float* scale, Head* head) {
  if (*scale > 0) return;
  float largest = 0;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * threads;
  for (std::int64_t piece = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x; piece < pieces;
       piece += step) {
    float values[pieceElements];
    load(from + piece * pieceElements, values);
#pragma unroll
    for (int i = 0; i < pieceElements; ++i) largest = fmaxf(largest, magnitude(values[i]));
  }
  largest = blockMax<threads>(largest);
  if (threadIdx.x == 0) raise(&head->largest, largest);
}

// What all blocks do in the end: the maximum of theirs, and once the scale.
template <fp8::Format format>
__device__ __forceinline__ void finish(float own, float factor, float* largest, Head* head) {
  if (largest != nullptr) {
    own = blockMax<threads>(own);
    if (threadIdx.x == 0) raise(reinterpret_cast<unsigned*>(largest), own);
  }
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) head->inverse = 1 / factor;
}

template <class T, fp8::Format format>
__global__ void __launch_bounds__(threads) straightKernel(const T* from, unsigned char* to, std::int64_t pieces,
                                                          const float* scale, float* largest, Head* head) {
  const float factor = scaleOf<format>(scale, head);
  const std::int64_t piece = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  float own = 0;
  if (piece < pieces) {
    float values[pieceElements];
    load(from + piece * pieceElements, values);
    union {
      uint2 words;
      unsigned char bytes[pieceElements];
    } made;
#pragma unroll
    for (int i = 0; i < pieceElements; ++i) {
      own = fmaxf(own, magnitude(values[i]));
      made.bytes[i] = toFp8<format>(values[i] * factor);
    }
    reinterpret_cast<uint2*>(to)[piece] = made.words;
  }
  finish<format>(own, factor, largest, head);
}

// A block a tile; rows and columns beyond the matrix come in whole pieces.
template <class T, fp8::Format format>
__global__ void __launch_bounds__(threads) transposedKernel(const T* from, unsigned char* to, int rows, int columns,
                                                            const float* scale, float* largest, Head* head) {
  SHARED_ARRAY(unsigned char, tile, [tileSide * tilePitch]);
  const float factor = scaleOf<format>(scale, head);
  const int firstRow = static_cast<int>(blockIdx.y) * tileSide, firstColumn = static_cast<int>(blockIdx.x) * tileSide;
  constexpr int piecesOfRow = tileSide / pieceElements, rowsAtOnce = threads / piecesOfRow;
  const int column = static_cast<int>(threadIdx.x) % piecesOfRow * pieceElements;
  float own = 0;
  for (int row = static_cast<int>(threadIdx.x) / piecesOfRow; row < tileSide; row += rowsAtOnce) {
    if (firstRow + row >= rows || firstColumn + column >= columns) continue;
    float values[pieceElements];
    load(from + static_cast<std::int64_t>(firstRow + row) * columns + firstColumn + column, values);
#pragma unroll
    for (int i = 0; i < pieceElements; ++i) {
      own = fmaxf(own, magnitude(values[i]));
      tile[(column + i) * tilePitch + row] = toFp8<format>(values[i] * factor);
    }
  }
  __syncthreads();
  constexpr int chunk = 16, chunksOfColumn = tileSide / chunk;
  const int ownColumn = static_cast<int>(threadIdx.x) / chunksOfColumn;
  const int row = static_cast<int>(threadIdx.x) % chunksOfColumn * chunk;
  if (firstRow + row < rows && firstColumn + ownColumn < columns) {
    const auto* words = reinterpret_cast<const unsigned*>(tile + ownColumn * tilePitch + row);
    *reinterpret_cast<uint4*>(to + static_cast<std::int64_t>(firstColumn + ownColumn) * rows + firstRow + row) =
        make_uint4(words[0], words[1], words[2], words[3]);
  }
  finish<format>(own, factor, largest, head);
}

template <class Body>
void withFormat(fp8::Format format, Body&& body) {
  if (format == fp8::Format::e4m3) {
    body(std::integral_constant<fp8::Format, fp8::Format::e4m3>{});
  } else {
    body(std::integral_constant<fp8::Format, fp8::Format::e5m2>{});
  }
}

}  // namespace

Matrix castToFp8(const ConstTensorView& from, fp8::Format format, bool transposed, const float* scale, float* largest,
                 Fp8Slot slot, Context& context) {
  const std::int64_t rows = from.shape.rows(), columns = from.shape.last(), pieces = rows * columns / pieceElements;
  auto* const memory = context.scratch.get<unsigned char>(static_cast<int>(slot), headBytes + rows * columns);
  auto* const head = reinterpret_cast<Head*>(memory);
  unsigned char* const to = memory + headBytes;
  check(cudaMemsetAsync(head, 0, sizeof(Head), context.stream), "an 8-bit operand");
  withStorage(from.type, "linear layer in 8 bits", [&](auto element) {
    using T = decltype(element);
    const T* const source = elements<T>(from);
    const auto most = static_cast<std::int64_t>(context.device->multiprocessors) * 8;
    const auto blocks = static_cast<unsigned>(std::min(ceilDivide(pieces, threads), most));
    check(launch<largestKernel<T>>({blocks, threads, 0, context.stream}, source, pieces, scale, head),
          "an 8-bit operand");
    withFormat(format, [&](auto chosen) {
      constexpr fp8::Format made = decltype(chosen)::value;
      if (transposed) {
        const dim3 tiles(static_cast<unsigned>(ceilDivide(columns, tileSide)),
                         static_cast<unsigned>(ceilDivide(rows, tileSide)));
        check(launch<transposedKernel<T, made>>({tiles, threads, 0, context.stream}, source, to, static_cast<int>(rows),
                                                static_cast<int>(columns), scale, largest, head),
              "an 8-bit operand");
      } else {
        check(launch<straightKernel<T, made>>(
                  {static_cast<unsigned>(ceilDivide(pieces, threads)), threads, 0, context.stream}, source, to, pieces,
                  scale, largest, head),
              "an 8-bit operand");
      }
    });
  });
  Matrix made{.data = to, .rows = rows, .columns = columns, .stride = columns, .fp8 = format, .factor = &head->inverse};
  if (transposed) {
    std::swap(made.rows, made.columns);
    made.stride = rows;
  }
  return made;
}

}  // namespace tandem::kernels::cuda
