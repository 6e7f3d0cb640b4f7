// Flat runs of elements: add, scale, axpy, cast, fill (see flat.h), and the squared norm.
//
// The squared norm is bound by memory, too: a first kernel leaves one double a block, a second adds those up. Which
// thread adds which elements depends on the count alone, not on the device, the address or the order of blocks.
#include "kernels/cuda/flat.h"
#include "kernels/cuda/operators.h"
#include "kernels/cuda/reduce.h"

namespace tandem::kernels::cuda {

namespace {

template <class T>
struct AddElements {
  static constexpr int vectors = 2;
  const T *left, *right;
  T* output;
  template <int N>
  struct Values {
    Packed<N, T> left, right;
  };
  template <int N>
  __device__ void read(std::int64_t at, Values<N>& values) const {
    values.left.load(left + at);
    values.right.load(right + at);
  }
  template <int N>
  __device__ void write(std::int64_t at, const Values<N>& values) const {
    float a[N], b[N];
    values.left.unpack(a);
    values.right.unpack(b);
#pragma unroll
    for (int i = 0; i < N; ++i) a[i] += b[i];
    store(output + at, a);
  }
};

struct ScaleElements {
  static constexpr int vectors = 4;
  float* data;
  float factor;
  template <int N>
  struct Values {
    float x[N];
  };
  template <int N>
  __device__ void read(std::int64_t at, Values<N>& values) const {
    load(data + at, values.x);
  }
  template <int N>
  __device__ void write(std::int64_t at, Values<N>& values) const {
#pragma unroll
    for (int i = 0; i < N; ++i) values.x[i] *= factor;
    store(data + at, values.x);
  }
};

struct AxpyElements {
  static constexpr int vectors = 2;
  const float* source;
  float* target;
  float factor;
  template <int N>
  struct Values {
    float x[N], y[N];
  };
  template <int N>
  __device__ void read(std::int64_t at, Values<N>& values) const {
    load(source + at, values.x);
    load(target + at, values.y);
  }
  template <int N>
  __device__ void write(std::int64_t at, Values<N>& values) const {
#pragma unroll
    for (int i = 0; i < N; ++i) values.y[i] = fmaf(factor, values.x[i], values.y[i]);
    store(target + at, values.y);
  }
};

template <class From, class To>
struct CastElements {
  static constexpr int vectors = 2;
  const From* from;
  To* to;
  template <int N>
  struct Values {
    Packed<N, From> x;
  };
  template <int N>
  __device__ void read(std::int64_t at, Values<N>& values) const {
    values.x.load(from + at);
  }
  template <int N>
  __device__ void write(std::int64_t at, const Values<N>& values) const {
    float x[N];
    values.x.unpack(x);
    store(to + at, x);
  }
};

template <class T>
struct FillElements {
  static constexpr int vectors = 4;
  T* target;
  float value;
  template <int N>
  struct Values {};
  template <int N>
  __device__ void read(std::int64_t, Values<N>&) const {}
  template <int N>
  __device__ void write(std::int64_t at, const Values<N>&) const {
    float x[N];
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = value;
    store(target + at, x);
  }
};

// --- the squared norm ------------------------------------------------------------------------------------------------

constexpr int normThreads = 256;
constexpr int normVector = 4;
constexpr int normVectors = 4;  // that a thread has in flight
constexpr std::int64_t normTile = std::int64_t{normThreads} * normVector * normVectors;
constexpr std::int64_t maximalNormBlocks = 2048;

template <bool aligned>
__global__ void __launch_bounds__(normThreads) squaresKernel(const float* input, std::int64_t count, double* sums) {
  double sum = 0;
  for (std::int64_t tile = blockIdx.x * normTile; tile < count; tile += gridDim.x * normTile) {
    float x[normVectors][normVector];
#pragma unroll
    for (int v = 0; v < normVectors; ++v) {
      const std::int64_t at = tile + (v * normThreads + static_cast<int>(threadIdx.x)) * normVector;
      if (aligned && at + normVector <= count) {
        load(input + at, x[v]);
      } else {
#pragma unroll
        for (int i = 0; i < normVector; ++i) x[v][i] = at + i < count ? input[at + i] : 0.0f;
      }
    }
#pragma unroll
    for (int v = 0; v < normVectors; ++v) {
#pragma unroll
      for (int i = 0; i < normVector; ++i) {
        const double wide = static_cast<double>(x[v][i]);
        sum += wide * wide;
      }
    }
  }
  sum = blockSum<normThreads>(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(normThreads) sumKernel(const double* sums, int count, double* result) {
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += normThreads) sum += sums[i];
  sum = blockSum<normThreads>(sum);
  if (threadIdx.x == 0) *result = sum;
}

}  // namespace

void run(const Add& call, Context& context) {
  withStorage(call.output.type, "Add", [&](auto element) {
    using T = decltype(element);
    constexpr int n = vectorElements<T>;
    runFlat<n>(AddElements<T>{elements<T>(call.left), elements<T>(call.right), elements<T>(call.output)},
               call.output.shape.count(), takeVectors<n>(call.left, call.right, call.output), "Add", context.stream);
  });
}

void run(const Scale& call, Context& context) {
  runFlat<4>(ScaleElements{elements<float>(call.data), call.factor}, call.data.shape.count(), takeVectors<4>(call.data),
             "Scale", context.stream);
}

void run(const Axpy& call, Context& context) {
  runFlat<4>(AxpyElements{elements<float>(call.source), elements<float>(call.target), call.factor},
             call.target.shape.count(), takeVectors<4>(call.source, call.target), "Axpy", context.stream);
}

void run(const Cast& call, Context& context) {
  withStorage(call.input.type, "Cast", [&](auto fromElement) {
    withStorage(call.output.type, "Cast", [&](auto toElement) {
      using From = decltype(fromElement);
      using To = decltype(toElement);
      constexpr int n = std::max(vectorElements<From>, vectorElements<To>);
      runFlat<n>(CastElements<From, To>{elements<From>(call.input), elements<To>(call.output)},
                 call.output.shape.count(), takeVectors<n>(call.input, call.output), "Cast", context.stream);
    });
  });
}

void run(const Fill& call, Context& context) {
  withStorage(call.target.type, "Fill", [&](auto element) {
    using T = decltype(element);
    constexpr int n = vectorElements<T>;
    runFlat<n>(FillElements<T>{elements<T>(call.target), call.value}, call.target.shape.count(),
               takeVectors<n>(call.target), "Fill", context.stream);
  });
}

void run(const SquaredNorm& call, Context& context) {
  const std::int64_t count = call.input.shape.count();
  const std::int64_t blocks = std::min(ceilDivide(count, 4 * normTile), maximalNormBlocks);
  auto* sums = context.scratch.get<double>(0, blocks);
  if (blocks > 0) {
    const Grid grid(dim3(static_cast<unsigned>(blocks)), dim3(normThreads), 0, context.stream);
    const float* input = elements<float>(call.input);
    check(takeVectors<normVector>(call.input) ? launch<squaresKernel<true>>(grid, input, count, sums)
                                              : launch<squaresKernel<false>>(grid, input, count, sums),
          "SquaredNorm");
  }
  check(launch<sumKernel>({dim3(1), dim3(normThreads), 0, context.stream}, sums, static_cast<int>(blocks),
                          elements<double>(call.result)),
        "SquaredNorm");
}

}  // namespace tandem::kernels::cuda
