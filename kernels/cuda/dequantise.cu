// Rows of quantised matrices as numbers again: tables looked up by token, and whole matrices.
//
// A thread takes a word of four bytes, which belong to one row. Neighbouring threads take the words of the eight rows
// of a block, as they lie in memory, where a whole matrix is wanted, and the words of one row where rows are picked.
#include "kernels/cuda/operators.h"
#include "kernels/cuda/storage.h"

namespace tandem::kernels::cuda {

namespace {

constexpr int threads = 128;
constexpr int block = static_cast<int>(quantisedBlock), group = static_cast<int>(quantisedGroup);

struct Matrix {
  const std::uint8_t* __restrict__ codes;
  const void* __restrict__ scales;
  std::int64_t outputs, inputs, words;  // words of a row
};

Matrix matrixOf(const QuantisedMatrix& matrix) {
  return {elements<std::uint8_t>(matrix.codes), matrix.scales.data, matrix.outputs, matrix.inputs,
          codeBytesOfRow(matrix.format, matrix.inputs) / 4};
}

__device__ __forceinline__ unsigned wordAt(const Matrix& matrix, std::int64_t row, std::int64_t word) {
  const std::int64_t place = (row / block * matrix.words + word) * block + row % block;
  return reinterpret_cast<const unsigned*>(matrix.codes)[place];
}

// Calls put(column, value) for the numbers of a word, those behind the row's end too.
template <QuantisedFormat format, class Put>
__device__ __forceinline__ void unpackWord(const Matrix& matrix, std::int64_t row, std::int64_t word, const Put& put) {
  const unsigned codes = wordAt(matrix, row, word);
  if constexpr (format == QuantisedFormat::int8) {
    const float scale = static_cast<const float*>(matrix.scales)[row];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      put(4 * word + i, static_cast<float>(static_cast<std::int8_t>(codes >> (8 * i))) * scale);
    }
  } else {
    constexpr int wordsOfGroup = group / 8;
    const std::int64_t number = word / wordsOfGroup;
    const auto* scales = static_cast<const __half*>(matrix.scales) +
                         (row / block * (matrix.words / wordsOfGroup) + number) * 2 * block + row % block;
    const float scale = toFloat(scales[0]), minimum = toFloat(scales[block]);
    const std::int64_t first = number * group + word % wordsOfGroup * 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned both = codes >> (8 * i) & 255u;
      put(first + i, fmaf(static_cast<float>(both & 15u), scale, minimum));
      put(first + group / 2 + i, fmaf(static_cast<float>(both >> 4), scale, minimum));
    }
  }
}

template <class T, QuantisedFormat format>
__global__ void __launch_bounds__(threads) dequantiseKernel(Matrix matrix, T* __restrict__ output) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  const std::int64_t row = index / block / matrix.words * block + index % block, word = index / block % matrix.words;
  if (row >= matrix.outputs) return;
  unpackWord<format>(matrix, row, word, [&](std::int64_t column, float value) {
    if (column < matrix.inputs) output[row * matrix.inputs + column] = fromFloat<T>(value);
  });
}

template <class T>
struct LookUp {
  Matrix matrix;
  const std::int32_t *tokens, *positions;
  const T* __restrict__ positionWeight;
  T* __restrict__ output;
};

// A block a token.
template <class T, QuantisedFormat format>
__global__ void __launch_bounds__(threads) quantisedEmbeddingKernel(LookUp<T> op) {
  const std::int64_t width = op.matrix.inputs;
  T* __restrict__ to = op.output + blockIdx.x * width;
  const T* position = op.positionWeight == nullptr ? nullptr : op.positionWeight + op.positions[blockIdx.x] * width;
  for (std::int64_t word = threadIdx.x; word < op.matrix.words; word += threads) {
    unpackWord<format>(op.matrix, op.tokens[blockIdx.x], word, [&](std::int64_t column, float value) {
      if (column >= width) return;
      to[column] = fromFloat<T>(position == nullptr ? value : value + toFloat(position[column]));
    });
  }
}

template <class Body>
void withFormat(QuantisedFormat format, Body&& body) {
  if (format == QuantisedFormat::int8) {
    body(std::integral_constant<QuantisedFormat, QuantisedFormat::int8>{});
  } else {
    body(std::integral_constant<QuantisedFormat, QuantisedFormat::int4>{});
  }
}

}  // namespace

void run(const Dequantise& call, Context& context) {
  const Matrix matrix = matrixOf(call.matrix);
  const std::int64_t count = quantisedBlocks(matrix.outputs) * block * matrix.words;
  if (count == 0) return;
  withStorage(call.output.type, "Dequantise", [&](auto element) {
    using T = decltype(element);
    withFormat(call.matrix.format, [&](auto format) {
      const Grid grid(dim3(static_cast<unsigned>(ceilDivide(count, threads))), dim3(threads), 0, context.stream);
      check(launch<dequantiseKernel<T, format()>>(grid, matrix, elements<T>(call.output)), "Dequantise");
    });
  });
}

void run(const QuantisedEmbedding& call, Context& context) {
  const std::int64_t rows = call.tokens.shape.count();
  if (rows == 0 || call.weight.inputs == 0) return;
  withStorage(call.output.type, "QuantisedEmbedding", [&](auto element) {
    using T = decltype(element);
    const LookUp<T> op{matrixOf(call.weight), elements<std::int32_t>(call.tokens),
                       elements<std::int32_t>(call.positions), elements<T>(call.positionWeight),
                       elements<T>(call.output)};
    withFormat(call.weight.format, [&](auto format) {
      const Grid grid(dim3(static_cast<unsigned>(rows)), dim3(threads), 0, context.stream);
      check(launch<quantisedEmbeddingKernel<T, format()>>(grid, op), "QuantisedEmbedding");
    });
  });
}

}  // namespace tandem::kernels::cuda
