#pragma once
// Tensor-core and asynchronous-copy instructions in C++, for the emulator; kernels/cuda/ptx.h holds the PTX and says
// how fragments lie.

#include <simt/device.h>

#include <limits>

namespace ptx {
namespace detail {
struct Bf16 {
  static float lo(uint32_t v) { return std::bit_cast<float>(v << 16); }
  static float hi(uint32_t v) { return std::bit_cast<float>(v & 0xffff0000u); }
};
struct F16 {
  static float lo(uint32_t v) { return __half2float(std::bit_cast<__half>(uint16_t(v))); }
  static float hi(uint32_t v) { return lo(v >> 16); }
};
struct Mma {
  const uint32_t *a, *b;
  float* d;
};
template <class Half>
SIMT_UNSEEN void mma(simt::Gather& s) {
  typedef float v8 __attribute__((vector_size(32)));
  float A[16][16];
  v8 B[16], C[16];
  for (int lane = 0; lane < 32; lane++) {
    const auto& m = *static_cast<Mma*>(s.slot[lane]);
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 8; i++)
      A[g + 8 * (i / 2 % 2)][2 * t + i % 2 + 8 * (i / 4)] = i % 2 ? Half::hi(m.a[i / 2]) : Half::lo(m.a[i / 2]);
    for (int i = 0; i < 4; i++) B[2 * t + i % 2 + 8 * (i / 2)][g] = i % 2 ? Half::hi(m.b[i / 2]) : Half::lo(m.b[i / 2]);
    for (int i = 0; i < 4; i++) C[g + 8 * (i / 2)][2 * t + i % 2] = m.d[i];
  }
  for (int r = 0; r < 16; r++)
    for (int k = 0; k < 16; k++) C[r] += A[r][k] * B[k];
  for (int lane = 0; lane < 32; lane++)
    for (int i = 0; i < 4; i++)
      static_cast<Mma*>(s.slot[lane])->d[i] = C[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2];
}
struct Rows {
  uint16_t row[8];
  const void* address;
  uint32_t out[4];
};
template <bool Trans>
SIMT_UNSEEN void ldmatrix(simt::Gather& s) {
  for (int j = 0; j < 4; j++) {  // lanes 8j..8j+7 brought the rows of matrix j
    const void* rows[8];
    const Rows* m[8];
    for (int i = 0; i < 8; i++) {
      m[i] = static_cast<Rows*>(s.slot[8 * j + i]);
      rows[i] = m[i]->address;
    }
    simt::count_ldmatrix_phase(rows);
    for (int lane = 0; lane < 32; lane++) {
      const int g = lane / 4, t = lane % 4;
      uint32_t x = Trans ? m[2 * t]->row[g] : m[g]->row[2 * t];
      uint32_t y = Trans ? m[2 * t + 1]->row[g] : m[g]->row[2 * t + 1];
      static_cast<Rows*>(s.slot[lane])->out[j] = x | y << 16;
    }
  }
}
template <bool Trans>
void load(uint32_t (&r)[4], const void* row, const simt::Loc& l) {
  Rows s;
  simt::check_shared(row, 16, 16, "ldmatrix", l);
  for (int i = 0; i < 8; i++) s.row[i] = static_cast<const uint16_t*>(row)[i];  // read by the lane that named it
  s.address = row;
  simt::converge(simt::Op::ldmatrix, ~0u, &s, ldmatrix<Trans>, l);
  for (int i = 0; i < 4; i++) r[i] = s.out[i];
}
inline void finish(simt::Copies& c, int groups_left) {
  int keep = groups_left < c.groups ? groups_left : c.groups, drop = c.groups - keep, take = 0;
  for (int i = 0; i < drop; i++) take += c.committed[i];
  for (int i = 0; i < take; i++) {
    if (c.q[i].bytes)
      *static_cast<uint4*>(c.q[i].dst) = *static_cast<const uint4*>(c.q[i].src);
    else
      *static_cast<uint4*>(c.q[i].dst) = uint4{0, 0, 0, 0};
  }
  for (int i = take; i < c.n; i++) c.q[i - take] = c.q[i];
  c.n -= take;
  for (int i = 0; i < keep; i++) c.committed[i] = c.committed[i + drop];
  c.groups = keep;
}
}  // namespace detail
inline void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                              const simt::Loc& l = simt::Loc::current()) {
  detail::Mma s{a, b, d};
  simt::converge(simt::Op::mma, ~0u, &s, detail::mma<detail::Bf16>, l);
}
inline void mma_m16n8k16_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                             const simt::Loc& l = simt::Loc::current()) {
  detail::Mma s{a, b, d};
  simt::converge(simt::Op::mma, ~0u, &s, detail::mma<detail::F16>, l);
}
inline float exp2(float x) {
  const float result = std::exp2(x);
  return std::abs(result) < std::numeric_limits<float>::min() ? 0.0f : result;
}
inline void ldmatrix_x4(uint32_t (&r)[4], const void* row, const simt::Loc& l = simt::Loc::current()) {
  detail::load<false>(r, row, l);
}
inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row, const simt::Loc& l = simt::Loc::current()) {
  detail::load<true>(r, row, l);
}
// Copies land as late as the program allows (in cp_async_wait), or at once with SIMT_ASYNC=early.
inline void cp_async_16(void* dst, const void* src, bool take = true, const simt::Loc& l = simt::Loc::current()) {
  simt::check_shared(dst, 16, 16, "cp.async", l);
  if (reinterpret_cast<uintptr_t>(src) % 16) simt::fail("cp.async: global address is not aligned to 16", l);
  simt::Copies& c = simt::copies();
  if (c.n == simt::Copies::cap) simt::fail("more cp.async in flight than the emulator holds", l);
  if (simt::late_copies()) {
    for (int i = 0; i < 4; i++) static_cast<uint32_t*>(dst)[i] = ~0u;  // nothing valid until the wait
    c.q[c.n++] = {dst, src, take ? 16u : 0u};
  } else
    *static_cast<uint4*>(dst) = take ? *static_cast<const uint4*>(src) : uint4{0, 0, 0, 0};
}
inline void cp_async_commit(const simt::Loc& l = simt::Loc::current()) {
  simt::Copies& c = simt::copies();
  if (c.groups == 16) simt::fail("more than 16 cp.async groups in flight", l);
  int in_groups = 0;
  for (int i = 0; i < c.groups; i++) in_groups += c.committed[i];
  c.committed[c.groups++] = c.n - in_groups;
}
template <int N>
void cp_async_wait() {
  detail::finish(simt::copies(), N);
}
}  // namespace ptx
