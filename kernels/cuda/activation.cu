// Activations and their gradients. Memory bounds all of them.
//
// Those of one argument are flat runs (flat.h). SwiGLU reads two halves of a row: a block takes a tile of columns of
// one row, so that dividing by the width, slow in 64 bits, happens once a block and not once an element.
#include "kernels/cuda/activation_function.h"

#include <algorithm>

#include "kernels/cuda/flat.h"
#include "kernels/cuda/operators.h"
#include "kernels/cuda/reduce.h"

namespace tandem::kernels::cuda {

namespace {

template <class T, ActivationKind kind>
struct ActivateElements {
  static constexpr int vectors = 2;
  const T* input;
  T* output;
  template <int N>
  struct Values {
    Packed<N, T> x;
  };
  template <int N>
  __device__ void read(std::int64_t at, Values<N>& values) const {
    values.x.load(input + at);
  }
  template <int N>
  __device__ void write(std::int64_t at, const Values<N>& values) const {
    float x[N];
    values.x.unpack(x);
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = activate<kind>(x[i]);
    store(output + at, x);
  }
};

template <class T, ActivationKind kind>
struct ActivateElementsBack {
  static constexpr int vectors = 2;
  const T *gradOutput, *input;
  T* gradInput;
  template <int N>
  struct Values {
    Packed<N, T> gradient, x;
  };
  template <int N>
  __device__ void read(std::int64_t at, Values<N>& values) const {
    values.gradient.load(gradOutput + at);
    values.x.load(input + at);
  }
  template <int N>
  __device__ void write(std::int64_t at, const Values<N>& values) const {
    float gradient[N], x[N];
    values.gradient.unpack(gradient);
    values.x.unpack(x);
#pragma unroll
    for (int i = 0; i < N; ++i) gradient[i] *= slope<kind>(x[i]);
    store(gradInput + at, gradient);
  }
};

// --- SwiGLU ----------------------------------------------------------------------------------------------------------

// Block b takes tile b % tiles of row b / tiles.
struct Tiles {
  std::int64_t width;
  int tiles;
};

template <int N>
__device__ __forceinline__ void placeOf(const Tiles& tiles, std::int64_t& row, std::int64_t& column) {
  row = blockIdx.x / static_cast<unsigned>(tiles.tiles);
  const unsigned tile = blockIdx.x % static_cast<unsigned>(tiles.tiles);
  column = (static_cast<std::int64_t>(tile) * blockDim.x + threadIdx.x) * N;
}

template <class T, int N>
__global__ void __launch_bounds__(flatThreads) swigluKernel(const T* input, T* output, Tiles tiles) {
  std::int64_t row, column;
  placeOf<N>(tiles, row, column);
  if (column >= tiles.width) return;
  float gate[N], up[N];
  load(input + row * 2 * tiles.width + column, gate);
  load(input + row * 2 * tiles.width + tiles.width + column, up);
#pragma unroll
  for (int i = 0; i < N; ++i) gate[i] *= sigmoid(gate[i]) * up[i];
  store(output + row * tiles.width + column, gate);
}

template <class T, int N>
__global__ void __launch_bounds__(flatThreads)
    swigluBackwardKernel(const T* gradOutput, const T* input, T* gradInput, Tiles tiles) {
  std::int64_t row, column;
  placeOf<N>(tiles, row, column);
  if (column >= tiles.width) return;
  const std::int64_t gateAt = row * 2 * tiles.width + column, upAt = gateAt + tiles.width;
  float gradient[N], gate[N], up[N];
  load(gradOutput + row * tiles.width + column, gradient);
  load(input + gateAt, gate);
  load(input + upAt, up);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float s = sigmoid(gate[i]), scaled = gradient[i] * s;
    const float gradUp = scaled * gate[i];
    gate[i] = scaled * up[i] * fmaf(gate[i], 1.0f - s, 1.0f);
    up[i] = gradUp;
  }
  store(gradInput + gateAt, gate);
  store(gradInput + upAt, up);
}

// A grid for `rows` of `width` elements, N a thread; the block no longer than a row needs.
template <int N>
Grid tileGrid(std::int64_t rows, std::int64_t width, cudaStream_t stream, Tiles& tiles) {
  const std::int64_t vectors = width / N;
  const std::int64_t threads = std::min<std::int64_t>(flatThreads, ceilDivide(vectors, warpLanes) * warpLanes);
  tiles = {width, static_cast<int>(ceilDivide(vectors, threads))};
  return Grid(dim3(static_cast<unsigned>(rows * tiles.tiles)), dim3(static_cast<unsigned>(threads)), 0, stream);
}

template <class T>
void runSwiglu(const Activation& call, Context& context) {
  const std::int64_t rows = call.output.shape.rows(), width = call.output.shape.last();
  if (rows == 0 || width == 0) return;
  constexpr int n = vectorElements<T>;
  withVector<n>(rowsTakeVectors<n>(width, call.input, call.output), [&](auto vector) {
    Tiles tiles;
    const Grid grid = tileGrid<vector()>(rows, width, context.stream, tiles);
    check(launch<swigluKernel<T, vector()>>(grid, elements<T>(call.input), elements<T>(call.output), tiles),
          "Activation");
  });
}

template <class T>
void runSwiglu(const ActivationBackward& call, Context& context) {
  const std::int64_t rows = call.gradOutput.shape.rows(), width = call.gradOutput.shape.last();
  if (rows == 0 || width == 0) return;
  constexpr int n = vectorElements<T>;
  withVector<n>(rowsTakeVectors<n>(width, call.gradOutput, call.input, call.gradInput), [&](auto vector) {
    Tiles tiles;
    const Grid grid = tileGrid<vector()>(rows, width, context.stream, tiles);
    check(launch<swigluBackwardKernel<T, vector()>>(grid, elements<T>(call.gradOutput), elements<T>(call.input),
                                                    elements<T>(call.gradInput), tiles),
          "ActivationBackward");
  });
}

}  // namespace

void run(const Activation& call, Context& context) {
  withStorage(call.output.type, "Activation", [&](auto element) {
    using T = decltype(element);
    if (call.kind == ActivationKind::swiglu) return runSwiglu<T>(call, context);
    withActivation(call.kind, [&](auto kind) {
      constexpr int n = vectorElements<T>;
      runFlat<n>(ActivateElements<T, kind()>{elements<T>(call.input), elements<T>(call.output)},
                 call.output.shape.count(), takeVectors<n>(call.input, call.output), "Activation", context.stream);
    });
  });
}

void run(const ActivationBackward& call, Context& context) {
  withStorage(call.gradOutput.type, "ActivationBackward", [&](auto element) {
    using T = decltype(element);
    if (call.kind == ActivationKind::swiglu) return runSwiglu<T>(call, context);
    withActivation(call.kind, [&](auto kind) {
      constexpr int n = vectorElements<T>;
      runFlat<n>(ActivateElementsBack<T, kind()>{elements<T>(call.gradOutput), elements<T>(call.input),
                                                 elements<T>(call.gradInput)},
                 call.gradOutput.shape.count(), takeVectors<n>(call.gradOutput, call.input, call.gradInput),
                 "ActivationBackward", context.stream);
    });
  });
}

}  // namespace tandem::kernels::cuda
