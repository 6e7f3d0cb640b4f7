// Products with quantised weights.
//
// Few rows (decoding) are bound by reading the weight: a block of threads takes a block of eight outputs, its warps
// share the groups of inputs, and each lane reads 16 bytes at a time: one word of four rows, whose codes become floats
// in registers and meet the same inputs. Parts are added up over lanes and warps in a fixed order. For many rows the
// weight is made floats in scratch memory once, for cuBLASLt.
#include "kernels/cuda/activation_function.h"
#include "kernels/cuda/operators.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/storage.h"

namespace tandem::kernels::cuda {

namespace {

constexpr int warps = 4;
constexpr int threads = warps * warpLanes;
constexpr int block = static_cast<int>(quantisedBlock), group = static_cast<int>(quantisedGroup);
constexpr int rowsOfLane = 4;          // of the weight: 16 bytes are a word of four of the block's eight rows
constexpr std::int64_t mostRows = 16;  // of the input; from there on the products of cuBLASLt are faster
constexpr int weightSlot = 3;          // of the scratch; Linear uses others

template <class T>
struct FewRows {
  const T* __restrict__ input;
  const std::uint8_t* __restrict__ codes;
  const void* __restrict__ scales;
  const T* __restrict__ bias;
  T* __restrict__ output;
  std::int64_t rows, inputs, outputs, groups;
  ActivationKind activation;
};

// Four inputs of a row from `column` on, zeros behind its end.
template <class T, bool vectors>
__device__ __forceinline__ void loadInputs(const T* row, std::int64_t column, std::int64_t inputs, float (&x)[4]) {
  if constexpr (vectors) {
    if (column < inputs) {
      load(row + column, x);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = 0;
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = column + i < inputs ? toFloat(row[column + i]) : 0.0f;
  }
}

// What a lane adds up: a part of four outputs for each of its rows of the input.
template <int inputRows>
using Sums = float[inputRows][rowsOfLane];

template <class T, int inputRows, bool vectors>
__device__ __forceinline__ void addInt8(const FewRows<T>& op, std::int64_t firstRow, std::int64_t number, int part,
                                        const uint4& four, Sums<inputRows>& sums) {
  const unsigned codes[rowsOfLane] = {four.x, four.y, four.z, four.w};
  float weights[rowsOfLane][4];
#pragma unroll
  for (int j = 0; j < rowsOfLane; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) weights[j][i] = static_cast<float>(static_cast<std::int8_t>(codes[j] >> (8 * i)));
  }
  const std::int64_t column = number * group + part / 2 * 4;
#pragma unroll
  for (int r = 0; r < inputRows; ++r) {
    if (firstRow + r >= op.rows) break;
    float x[4];
    loadInputs<T, vectors>(op.input + (firstRow + r) * op.inputs, column, op.inputs, x);
#pragma unroll
    for (int j = 0; j < rowsOfLane; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[r][j] = fmaf(weights[j][i], x[i], sums[r][j]);
    }
  }
}

template <class T, int inputRows, bool vectors>
__device__ __forceinline__ void addInt4(const FewRows<T>& op, std::int64_t firstRow, std::int64_t number, int part,
                                        const uint4& four, Sums<inputRows>& sums) {
  const unsigned codes[rowsOfLane] = {four.x, four.y, four.z, four.w};
  const auto* scales =
      static_cast<const __half*>(op.scales) + (blockIdx.x * op.groups + number) * 2 * block + part % 2 * rowsOfLane;
  float lower[rowsOfLane][4], upper[rowsOfLane][4];
#pragma unroll
  for (int j = 0; j < rowsOfLane; ++j) {
    const float scale = toFloat(scales[j]), minimum = toFloat(scales[block + j]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned both = codes[j] >> (8 * i) & 255u;
      lower[j][i] = fmaf(static_cast<float>(both & 15u), scale, minimum);
      upper[j][i] = fmaf(static_cast<float>(both >> 4), scale, minimum);
    }
  }
  const std::int64_t column = number * group + part / 2 * 4;
#pragma unroll
  for (int r = 0; r < inputRows; ++r) {
    if (firstRow + r >= op.rows) break;
    const T* row = op.input + (firstRow + r) * op.inputs;
    float x[4], y[4];
    loadInputs<T, vectors>(row, column, op.inputs, x);
    loadInputs<T, vectors>(row, column + group / 2, op.inputs, y);
#pragma unroll
    for (int j = 0; j < rowsOfLane; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[r][j] = fmaf(lower[j][i], x[i], fmaf(upper[j][i], y[i], sums[r][j]));
    }
  }
}

template <class T>
__device__ __forceinline__ void finish(const FewRows<T>& op, std::int64_t row, std::int64_t output, float sum) {
  if (op.bias != nullptr) sum += toFloat(op.bias[output]);
  float value = sum;
  switch (op.activation) {
    case ActivationKind::geluTanh:
      value = activate<ActivationKind::geluTanh>(sum);
      break;
    case ActivationKind::geluErf:
      value = activate<ActivationKind::geluErf>(sum);
      break;
    case ActivationKind::relu2:
      value = activate<ActivationKind::relu2>(sum);
      break;
    default:
      break;
  }
  op.output[row * op.outputs + output] = fromFloat<T>(value);
}

// Lanes that read a group of a block of rows, 16 bytes each.
template <QuantisedFormat format>
constexpr int lanesOfGroup = static_cast<int>(codeBytesOfGroup(format)) * block / 16;

// Block (block of outputs, rows of the input).
template <class T, QuantisedFormat format, int inputRows, bool vectors>
__global__ void __launch_bounds__(threads) quantisedLinearKernel(FewRows<T> op) {
  constexpr int parts = lanesOfGroup<format>;
  constexpr int groupsOfWarp = warpLanes / parts;
  const int warp = static_cast<int>(threadIdx.x) / warpLanes, lane = static_cast<int>(threadIdx.x) % warpLanes;
  const int part = lane % parts;
  const std::int64_t firstRow = static_cast<std::int64_t>(blockIdx.y) * inputRows;
  const auto* codes = reinterpret_cast<const uint4*>(op.codes) + blockIdx.x * op.groups * parts;
  Sums<inputRows> sums = {};
  for (std::int64_t number = warp * groupsOfWarp + lane / parts; number < op.groups; number += warps * groupsOfWarp) {
    const uint4 four = codes[number * parts + part];
    if constexpr (format == QuantisedFormat::int8) {
      addInt8<T, inputRows, vectors>(op, firstRow, number, part, four, sums);
    } else {
      addInt4<T, inputRows, vectors>(op, firstRow, number, part, four, sums);
    }
  }
  // Lanes of one parity hold the same four outputs.
  SHARED_ARRAY(float, shared, [warps][inputRows][block]);
#pragma unroll
  for (int r = 0; r < inputRows; ++r) {
#pragma unroll
    for (int j = 0; j < rowsOfLane; ++j) {
      float sum = sums[r][j];
#pragma unroll
      for (int distance = warpLanes / 2; distance > 1; distance /= 2) sum += __shfl_xor_sync(allLanes, sum, distance);
      if (lane < 2) shared[warp][r][lane * rowsOfLane + j] = sum;
    }
  }
  __syncthreads();
  if (threadIdx.x >= inputRows * block) return;
  const int r = static_cast<int>(threadIdx.x) / block, j = static_cast<int>(threadIdx.x) % block;
  const std::int64_t row = firstRow + r, output = static_cast<std::int64_t>(blockIdx.x) * block + j;
  if (row >= op.rows || output >= op.outputs) return;
  float sum = shared[0][r][j];
  for (int other = 1; other < warps; ++other) sum += shared[other][r][j];
  if constexpr (format == QuantisedFormat::int8) sum *= static_cast<const float*>(op.scales)[output];
  finish(op, row, output, sum);
}

template <class T, QuantisedFormat format, int inputRows>
void launchFewRows(const QuantisedLinear& call, Context& context) {
  const FewRows<T> op{.input = elements<T>(call.input),
                      .codes = elements<std::uint8_t>(call.weight.codes),
                      .scales = call.weight.scales.data,
                      .bias = elements<T>(call.bias),
                      .output = elements<T>(call.output),
                      .rows = call.input.shape.rows(),
                      .inputs = call.weight.inputs,
                      .outputs = call.weight.outputs,
                      .groups = quantisedGroups(call.weight.inputs),
                      .activation = call.activation};
  const Grid grid(
      dim3(static_cast<unsigned>(quantisedBlocks(op.outputs)), static_cast<unsigned>(ceilDivide(op.rows, inputRows))),
      dim3(threads), 0, context.stream);
  check(rowsTakeVectors<4>(op.inputs, call.input)
            ? launch<quantisedLinearKernel<T, format, inputRows, true>>(grid, op)
            : launch<quantisedLinearKernel<T, format, inputRows, false>>(grid, op),
        "QuantisedLinear");
}

template <class T, QuantisedFormat format>
void fewRows(const QuantisedLinear& call, Context& context) {
  if (call.input.shape.rows() == 1) return launchFewRows<T, format, 1>(call, context);
  launchFewRows<T, format, 4>(call, context);
}

}  // namespace

void run(const QuantisedLinear& call, Context& context) {
  const std::int64_t rows = call.input.shape.rows();
  if (rows == 0 || call.weight.outputs == 0) return;
  if (rows > mostRows) {
    const Shape shape{call.weight.outputs, call.weight.inputs};
    TensorView weight(nullptr, call.input.type, shape);
    weight.data = context.scratch.get(weightSlot, shape.count() * base::byteSize(weight.type));
    run(Dequantise{call.weight, weight}, context);
    return run(Linear{.input = call.input,
                      .weight = weight,
                      .bias = call.bias,
                      .activation = call.activation,
                      .preActivation = {},
                      .output = call.output},
               context);
  }
  withStorage(call.input.type, "QuantisedLinear", [&](auto element) {
    using T = decltype(element);
    if (call.weight.format == QuantisedFormat::int8) {
      fewRows<T, QuantisedFormat::int8>(call, context);
    } else {
      fewRows<T, QuantisedFormat::int4>(call, context);
    }
  });
}

}  // namespace tandem::kernels::cuda
