#pragma once
// Elements of a storage type in memory, floats in registers: conversions, loads and stores of several elements at once,
// and the choices a launch makes by type and by alignment.
//
//   withStorage(call.input.type, "norm", [&](auto element) {
//     using T = decltype(element);
//     constexpr int n = vectorElements<T>;
//     withVector<n>(rowsTakeVectors<n>(width, call.input, call.output), [&](auto vector) {
//       check(launch<kernel<T, vector()>>(...), "norm");
//     });
//   });
//
// A memory-bound kernel is fast when each thread moves 16 bytes an instruction. That wants addresses that are multiples
// of 16, which a view need not have; such a call takes the same kernel built for one element at a time.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <string>
#include <type_traits>

#include "common/base/error.h"
#include "kernels/cuda/launch.h"
#include "kernels/tensor_view.h"

namespace tandem::kernels::cuda {

// --- elements --------------------------------------------------------------------------------------------------------

__host__ __device__ inline float toFloat(float value) { return value; }
__host__ __device__ inline float toFloat(__nv_bfloat16 value) { return __bfloat162float(value); }
__host__ __device__ inline float toFloat(__half value) { return __half2float(value); }

// Rounded to nearest, ties to even.
template <class T>
__host__ __device__ inline T fromFloat(float value) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(value);
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(value);
  } else {
    static_assert(std::is_same_v<T, float>);
    return value;
  }
}

// What a store and a load make of a value: kernels that go on with a value they have stored use this one.
template <class T>
__host__ __device__ inline float rounded(float value) {
  return toFloat(fromFloat<T>(value));
}

// Elements of T in 16 bytes: the longest vector that a thread moves by one instruction.
template <class T>
inline constexpr int vectorElements = 16 / static_cast<int>(sizeof(T));

namespace detail {

template <int bytes>
struct Word;
template <>
struct Word<2> {
  using Type = unsigned short;
};
template <>
struct Word<4> {
  using Type = unsigned int;
};
template <>
struct Word<8> {
  using Type = uint2;
};
template <>
struct Word<16> {
  using Type = uint4;
};

}  // namespace detail

// N elements as they lie in memory, for kernels that keep many of them in registers: half the room of floats.
template <int N, class T>
struct Packed {
  static constexpr int bytes = N * static_cast<int>(sizeof(T));
  using Word = typename detail::Word<(bytes < 16 ? bytes : 16)>::Type;
  static constexpr int words = bytes < 16 ? 1 : bytes / 16;
  static_assert(words * static_cast<int>(sizeof(Word)) == bytes, "N is a power of two");
  union {
    Word word[words];
    T element[N];
  };

  __device__ __forceinline__ Packed() {}

  // `from` and `to` lie at multiples of min(16, N * sizeof(T)) bytes.
  __device__ __forceinline__ void load(const T* from) {
#pragma unroll
    for (int i = 0; i < words; ++i) word[i] = reinterpret_cast<const Word*>(from)[i];
  }
  __device__ __forceinline__ void store(T* to) const {
#pragma unroll
    for (int i = 0; i < words; ++i) reinterpret_cast<Word*>(to)[i] = word[i];
  }
  __device__ __forceinline__ void unpack(float (&to)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = toFloat(element[i]);
  }
  __device__ __forceinline__ void pack(const float (&from)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) element[i] = fromFloat<T>(from[i]);
  }
};

// Under the same condition on the address.
template <int N, class T>
__device__ __forceinline__ void load(const T* from, float (&to)[N]) {
  Packed<N, T> packed;
  packed.load(from);
  packed.unpack(to);
}
template <int N, class T>
__device__ __forceinline__ void store(T* to, const float (&from)[N]) {
  Packed<N, T> packed;
  packed.pack(from);
  packed.store(to);
}

// --- what a launch chooses on the host -------------------------------------------------------------------------------

// Calls body(T{}) with the element type of `type`. Throws Error of kind usage for what no operator computes with.
template <class Body>
void withStorage(DType type, const char* operatorName, Body&& body) {
  switch (type) {
    case DType::f32:
      return body(float{});
    case DType::bf16:
      return body(__nv_bfloat16{});
    case DType::f16:
      return body(__half{});
    default:
      throw base::Error(base::ErrorKind::usage, std::string("the CUDA operator ") + operatorName +
                                                    " cannot compute with tensors of type " + base::name(type) +
                                                    "; float32, bfloat16 and float16 are possible");
  }
}

// Whether N elements from here can be moved by vector instructions. A null pointer (an operand left out) is no
// obstacle.
template <int N>
bool isAligned(const void* data, DType type) {
  const std::int64_t bytes = N * base::byteSize(type);
  return reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(bytes < 16 ? bytes : 16) == 0;
}

// Whether N elements can be moved at once from every multiple of N within dense views.
template <int N, class... Views>
bool takeVectors(const Views&... views) {
  return (isAligned<N>(views.data, views.type) && ...);
}

// The same within every row of `width` elements.
template <int N, class... Views>
bool rowsTakeVectors(std::int64_t width, const Views&... views) {
  return width % N == 0 && takeVectors<N>(views...);
}

// Calls body with std::integral_constant<int, N> if the vectors are possible, else with 1.
template <int N, class Body>
void withVector(bool possible, Body&& body) {
  if (possible) {
    body(std::integral_constant<int, N>{});
  } else {
    body(std::integral_constant<int, 1>{});
  }
}

template <class T>
const T* elements(const ConstTensorView& view) {
  return static_cast<const T*>(view.data);
}
template <class T>
T* elements(const TensorView& view) {
  return static_cast<T*>(view.data);
}

template <class A, class B>
constexpr std::int64_t ceilDivide(A count, B part) {
  return (static_cast<std::int64_t>(count) + static_cast<std::int64_t>(part) - 1) / static_cast<std::int64_t>(part);
}

}  // namespace tandem::kernels::cuda
