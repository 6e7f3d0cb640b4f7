// Dropout, and multiplication by a factor.
#include "kernels/cuda/flat.h"
#include "kernels/cuda/operators.h"
#include "kernels/dropout_mask.h"

namespace tandem::kernels::cuda {

namespace {

template <class T>
struct DropElements {
  static constexpr int vectors = 2;
  const T* input;
  T* output;
  const std::int32_t* keys;  // null: nothing is dropped
  std::int64_t width;
  std::uint32_t threshold, purpose;
  float factor;
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
    for (int i = 0; i < N; ++i) {
      x[i] *= factor;
      if (keys != nullptr) {
        const std::int64_t row = (at + i) / width;
        const std::uint64_t stream = dropoutStream(keys[2 * row], keys[2 * row + 1], purpose);
        if (isDropped(stream, static_cast<std::uint64_t>(at + i - row * width), threshold)) x[i] = 0.0f;
      }
    }
    store(output + at, x);
  }
};

}  // namespace

void run(const Dropout& call, Context& context) {
  withStorage(call.output.type, "Dropout", [&](auto element) {
    using T = decltype(element);
    constexpr int n = vectorElements<T>;
    const DropElements<T> work{elements<T>(call.input),
                               elements<T>(call.output),
                               call.keys ? elements<std::int32_t>(call.keys) : nullptr,
                               call.input.shape.last(),
                               dropoutThreshold(call.rate),
                               call.purpose,
                               call.factor};
    runFlat<n>(work, call.output.shape.count(), takeVectors<n>(call.input, call.output), "Dropout", context.stream);
  });
}

}  // namespace tandem::kernels::cuda
