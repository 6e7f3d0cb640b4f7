#pragma once
// What the CUDA compiler supplies to device code, for a plain C++ compiler: built-ins, barriers, shuffles, atomics and
// maths, run on the CPU thread by thread (emulator.cpp). Kernel sources get it through kernels/cuda/launch.h.

#include <bit>
#include <cassert>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>

#undef __shared__
#undef __constant__
#define __shared__ static thread_local /* works, but unguarded and uncounted: prefer SHARED_ARRAY */
#define __constant__
#define __launch_bounds__(...)
#ifndef __forceinline__
#define __forceinline__ inline __attribute__((always_inline))
#endif
#define SIMT_UNSEEN __attribute__((no_sanitize("thread"), noinline)) /* emulator's own traffic between lanes */

namespace simt {
using Loc = std::source_location;
enum class Op : uint8_t { none, barrier, syncwarp, shfl, vote, reduce, ldmatrix, mma };

struct Copy {
  void* dst;
  const void* src;
  unsigned bytes;
};  // a pending cp.async
struct Copies {
  static constexpr int cap = 64;
  Copy q[cap];
  int n = 0, committed[16] = {}, groups = 0;
};

struct Lane {  // one CUDA thread
  uint3 tid{};
  unsigned linear = 0, warp = 0, lane = 0;
  Op op = Op::none;  // what it waits at
  unsigned mask = 0;
  Loc loc{};
  void* slot = nullptr;  // its operands, on its own stack
  void* fiber = nullptr;
  void* tsan = nullptr;
  bool done = false;
  Copies* copies = nullptr;
};
struct Place {
  uint3 block{};
  dim3 block_dim{}, grid_dim{};
  uint64_t epoch = 0;
};
extern constinit thread_local Lane* self;
extern constinit thread_local Place place;

struct Gather {
  void* slot[32];
  unsigned mask;
};
using Combine = void (*)(Gather&);
void converge(Op, unsigned mask, void* mine, Combine, const Loc&);
int block_barrier(int predicate, int kind, const Loc&);  // kind: 0 none, 1 or, 2 and, 3 count
[[noreturn]] void fail(const std::string& what, const Loc& = Loc::current());
void* dynamic_shared();
void* static_shared(size_t bytes, size_t align);
void check_shared(const void*, size_t bytes, size_t align, const char* what, const Loc&);
void fence();
void count_ldmatrix_phase(const void* const* rows8);  // bank-conflict statistics
Copies& copies();
bool late_copies();

struct Stats {
  uint64_t launches, blocks, threads, barriers, collectives, switches, ldmatrix_phases, ldmatrix_conflicts;
};
Stats stats();
void reset_stats();
void set_seed(uint64_t);  // 0 ascending, 1 descending, else random order of lanes, warps and blocks
std::string last_error();
cudaError_t submit(const tandem::kernels::cuda::Grid&, std::string_view kernel, size_t param_bytes,
                   std::function<void()> thread);

template <class T, class Tag>
SIMT_UNSEEN T& shared_object() {
  static thread_local struct {
    uint64_t epoch;
    void* p;
  } at{};
  if (at.epoch != place.epoch) at = {place.epoch, static_shared(sizeof(T), alignof(T) > 16 ? alignof(T) : 16)};
  return *static_cast<T*>(at.p);
}
template <auto* K>
constexpr std::string_view name_of() {
  std::string_view s = __PRETTY_FUNCTION__;
  s.remove_prefix(s.find("K = ") + 4);
  auto end = s.find("; std::string_view");  // g++; clang++ ends with the bracket
  return s.substr(0, end == s.npos ? s.size() - 1 : end);
}
}  // namespace simt

#define SHARED_ARRAY(type, name, ...) \
  struct name##_shared_tag {};        \
  auto& name = ::simt::shared_object<std::type_identity_t<type __VA_ARGS__>, name##_shared_tag>()
#define SHARED_DYNAMIC(type, name) type* const name = static_cast<type*>(::simt::dynamic_shared())

#define threadIdx (::simt::self->tid)
#define blockIdx (::simt::place.block)
#define blockDim (::simt::place.block_dim)
#define gridDim (::simt::place.grid_dim)

namespace tandem::kernels::cuda::detail {
template <class... P>
struct Invoke<void(P...)> {
  template <auto* K>
  static cudaError_t run(const Grid& g, P... p) {
    return simt::submit(g, simt::name_of<K>(), (sizeof(P) + ... + 0), [=] { K(p...); });
  }
};
}  // namespace tandem::kernels::cuda::detail

// ---- barriers, votes, shuffles --------------------------------------------------------------
inline void __syncthreads(const simt::Loc& l = simt::Loc::current()) { simt::block_barrier(0, 0, l); }
inline int __syncthreads_or(int p, const simt::Loc& l = simt::Loc::current()) { return simt::block_barrier(p, 1, l); }
inline int __syncthreads_and(int p, const simt::Loc& l = simt::Loc::current()) { return simt::block_barrier(p, 2, l); }
inline int __syncthreads_count(int p, const simt::Loc& l = simt::Loc::current()) {
  return simt::block_barrier(p, 3, l);
}
inline void __syncwarp(unsigned mask = ~0u, const simt::Loc& l = simt::Loc::current()) {
  simt::converge(simt::Op::syncwarp, mask, nullptr, nullptr, l);
}
namespace simt {
template <class T>
struct Shfl {
  T in, out;
  int src;
};
template <class T>
SIMT_UNSEEN void shfl_combine(Gather& g) {
  for (int i = 0; i < 32; i++)
    if (g.mask >> i & 1) {
      auto* s = static_cast<Shfl<T>*>(g.slot[i]);
      if (!(g.mask >> s->src & 1)) fail("shuffle reads a lane that is not in its mask");
      s->out = static_cast<Shfl<T>*>(g.slot[s->src])->in;
    }
}
template <class T>
T shfl(unsigned mask, T v, int src, const Loc& l) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  Shfl<T> s{v, v, src};
  converge(Op::shfl, mask, &s, shfl_combine<T>, l);
  return s.out;
}
}  // namespace simt
template <class T>
T __shfl_sync(unsigned m, T v, int src, int w = 32, const simt::Loc& l = simt::Loc::current()) {
  int lane = int(simt::self->lane);
  return simt::shfl(m, v, (lane & ~(w - 1)) + (src & (w - 1)), l);
}
template <class T>
T __shfl_xor_sync(unsigned m, T v, int x, int w = 32, const simt::Loc& l = simt::Loc::current()) {
  int lane = int(simt::self->lane), s = lane ^ x;
  return simt::shfl(m, v, s >= (lane & ~(w - 1)) + w ? lane : s, l);
}
template <class T>
T __shfl_down_sync(unsigned m, T v, unsigned d, int w = 32, const simt::Loc& l = simt::Loc::current()) {
  int lane = int(simt::self->lane), s = lane + int(d);
  return simt::shfl(m, v, s >= (lane & ~(w - 1)) + w ? lane : s, l);
}
template <class T>
T __shfl_up_sync(unsigned m, T v, unsigned d, int w = 32, const simt::Loc& l = simt::Loc::current()) {
  int lane = int(simt::self->lane), s = lane - int(d);
  return simt::shfl(m, v, s < (lane & ~(w - 1)) ? lane : s, l);
}
namespace simt {
struct Vote {
  unsigned in, out;
};
template <class F>
SIMT_UNSEEN void vote_combine(Gather& g) {
  unsigned acc = 0;
  bool first = true;
  for (int i = 0; i < 32; i++)
    if (g.mask >> i & 1) {
      unsigned v = static_cast<Vote*>(g.slot[i])->in;
      acc = first ? F{}(v, i) : F{}(acc, v, i);
      first = false;
    }
  for (int i = 0; i < 32; i++)
    if (g.mask >> i & 1) static_cast<Vote*>(g.slot[i])->out = acc;
}
struct Ballot {
  unsigned operator()(unsigned v, int i) const { return unsigned(v != 0) << i; }
  unsigned operator()(unsigned a, unsigned v, int i) const { return a | unsigned(v != 0) << i; }
};
template <class F>
unsigned vote(Op op, unsigned mask, unsigned v, const Loc& l) {
  Vote s{v, 0};
  converge(op, mask, &s, vote_combine<F>, l);
  return s.out;
}
#define SIMT_FOLD(name, expr)                                               \
  struct name {                                                             \
    unsigned operator()(unsigned v, int) const { return v; }                \
    unsigned operator()(unsigned a, unsigned v, int) const { return expr; } \
  }
SIMT_FOLD(Add, a + v);
SIMT_FOLD(And, a& v);
SIMT_FOLD(Or, a | v);
SIMT_FOLD(Xor, a ^ v);
SIMT_FOLD(MinU, a < v ? a : v);
SIMT_FOLD(MaxU, a > v ? a : v);
SIMT_FOLD(MinS, int(a) < int(v) ? a : v);
SIMT_FOLD(MaxS, int(a) > int(v) ? a : v);
}  // namespace simt
inline unsigned __ballot_sync(unsigned m, int p, const simt::Loc& l = simt::Loc::current()) {
  return simt::vote<simt::Ballot>(simt::Op::vote, m, unsigned(p), l);
}
inline int __any_sync(unsigned m, int p, const simt::Loc& l = simt::Loc::current()) {
  return __ballot_sync(m, p, l) != 0;
}
inline int __all_sync(unsigned m, int p, const simt::Loc& l = simt::Loc::current()) {
  return __ballot_sync(m, p, l) == m;
}
#define SIMT_REDUCE(name, U, S)                                                             \
  inline unsigned name(unsigned m, unsigned v, const simt::Loc& l = simt::Loc::current()) { \
    return simt::vote<simt::U>(simt::Op::reduce, m, v, l);                                  \
  }                                                                                         \
  inline int name(unsigned m, int v, const simt::Loc& l = simt::Loc::current()) {           \
    return int(simt::vote<simt::S>(simt::Op::reduce, m, unsigned(v), l));                   \
  }
SIMT_REDUCE(__reduce_add_sync, Add, Add)
SIMT_REDUCE(__reduce_min_sync, MinU, MinS)
    SIMT_REDUCE(__reduce_max_sync, MaxU,
                MaxS) inline unsigned __reduce_and_sync(unsigned m, unsigned v,
                                                        const simt::Loc& l = simt::Loc::current()) {
  return simt::vote<simt::And>(simt::Op::reduce, m, v, l);
}
inline unsigned __reduce_or_sync(unsigned m, unsigned v, const simt::Loc& l = simt::Loc::current()) {
  return simt::vote<simt::Or>(simt::Op::reduce, m, v, l);
}
inline unsigned __reduce_xor_sync(unsigned m, unsigned v, const simt::Loc& l = simt::Loc::current()) {
  return simt::vote<simt::Xor>(simt::Op::reduce, m, v, l);
}
inline void __threadfence() { simt::fence(); }
inline void __threadfence_block() { simt::fence(); }
[[noreturn]] inline void __trap() { simt::fail("__trap()"); }

// ---- atomics (relaxed, as on the GPU) -------------------------------------------------------
namespace simt {
template <class T>
using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;
template <class T, class F>
T rmw(T* p, F f) {
  using B = Bits<T>;
  B* q = reinterpret_cast<B*>(p);
  B old = __atomic_load_n(q, __ATOMIC_RELAXED), want;
  do {
    want = std::bit_cast<B>(T(f(std::bit_cast<T>(old))));
  } while (!__atomic_compare_exchange_n(q, &old, want, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return std::bit_cast<T>(old);
}
}  // namespace simt
template <class T>
T atomicAdd(T* p, std::type_identity_t<T> v) {
  return simt::rmw(p, [v](T o) { return T(o + v); });
}
template <class T>
T atomicMax(T* p, std::type_identity_t<T> v) {
  return simt::rmw(p, [v](T o) { return o < v ? v : o; });
}
template <class T>
T atomicMin(T* p, std::type_identity_t<T> v) {
  return simt::rmw(p, [v](T o) { return v < o ? v : o; });
}
template <class T>
T atomicOr(T* p, std::type_identity_t<T> v) {
  return simt::rmw(p, [v](T o) { return o | v; });
}
template <class T>
T atomicAnd(T* p, std::type_identity_t<T> v) {
  return simt::rmw(p, [v](T o) { return o & v; });
}
template <class T>
T atomicExch(T* p, std::type_identity_t<T> v) {
  return simt::rmw(p, [v](T) { return v; });
}
template <class T>
T atomicCAS(T* p, std::type_identity_t<T> c, std::type_identity_t<T> v) {
  return simt::rmw(p, [c, v](T o) { return o == c ? v : o; });
}
inline unsigned atomicInc(unsigned* p, unsigned lim) {
  return simt::rmw(p, [lim](unsigned o) { return o >= lim ? 0u : o + 1; });
}

// ---- loads, bits, math ----------------------------------------------------------------------
template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
T __ldcg(const T* p) {
  return *p;
}
template <class T>
void __stcs(T* p, std::type_identity_t<T> v) {
  *p = v;
}
template <class T>
void __stcg(T* p, std::type_identity_t<T> v) {
  *p = v;
}
inline unsigned __float_as_uint(float f) { return std::bit_cast<unsigned>(f); }
inline int __float_as_int(float f) { return std::bit_cast<int>(f); }
inline float __uint_as_float(unsigned u) { return std::bit_cast<float>(u); }
inline float __int_as_float(int i) { return std::bit_cast<float>(i); }
inline int __popc(unsigned v) { return std::popcount(v); }
inline int __clz(int v) { return std::countl_zero(unsigned(v)); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
inline float __expf(float x) { return std::exp(x); }
inline float __exp10f(float x) { return std::pow(10.f, x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __powf(float x, float y) { return std::pow(x, y); }
inline float __sinf(float x) { return std::sin(x); }
inline float __cosf(float x) { return std::cos(x); }
inline void __sincosf(float x, float* s, float* c) {
  *s = std::sin(x);
  *c = std::cos(x);
}
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.f / x; }
inline float rsqrtf(float x) { return 1.f / std::sqrt(x); }
inline float __frsqrt_rn(float x) { return 1.f / std::sqrt(x); }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __saturatef(float x) { return x < 0 || x != x ? 0.f : x > 1 ? 1.f : x; }
template <class A, class B>
requires std::is_arithmetic_v<A> && std::is_arithmetic_v<B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  using C = std::common_type_t<A, B>;
  return C(b) < C(a) ? C(b) : C(a);
}
template <class A, class B>
requires std::is_arithmetic_v<A> && std::is_arithmetic_v<B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  using C = std::common_type_t<A, B>;
  return C(a) < C(b) ? C(b) : C(a);
}
// the half-precision headers keep these for device compilers only
inline __nv_bfloat16 __hfma(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) {
  return __float2bfloat16(std::fma(float(a), float(b), float(c)));
}
inline __nv_bfloat162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c) {
  return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}
inline __half __hfma(__half a, __half b, __half c) { return __float2half(std::fma(float(a), float(b), float(c))); }
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }
