// Tensor-core and asynchronous-copy instructions: inline PTX for the GPU, the same contract in C++ for the emulator.
// All inline assembly lives here; each instruction has both versions and a test of its own. Fragment layouts follow the
// PTX ISA, "Matrix fragments for mma.m16n8k16" and "ldmatrix". With g = lane / 4 and t = lane % 4, half i of a register
// list holds
//   A (16x16 row): row g + 8*(i/2%2), column 2t + i%2 + 8*(i/4)     i = 0..7
//   B (16x8 col):  row 2t + i%2 + 8*(i/2), column g                 i = 0..3
//   C, D (16x8):   row g + 8*(i/2), column 2t + i%2                 i = 0..3
#pragma once
#include "kernels/cuda/launch.h"

#if SIMT_EMULATED
#include <simt/ptx.h>
#else
#define PTX_FN __device__ __forceinline__
namespace ptx {
PTX_FN unsigned smem(const void* p) { return unsigned(__cvta_generic_to_shared(p)); }
PTX_FN void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {  // d += a*b
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
PTX_FN void mma_m16n8k16_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {  // d += a*b
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
PTX_FN float exp2(float x) {  // to 2 units in the last place; numbers too small for a normal result give 0
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
PTX_FN void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(smem(row))
               : "memory");
}
PTX_FN void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(smem(row))
               : "memory");
}
PTX_FN void cp_async_16(void* dst, const void* src, bool take = true) {  // !take writes zeros
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem(dst)), "l"(src), "r"(take ? 16 : 0)
               : "memory");
}
PTX_FN void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
PTX_FN void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
}  // namespace ptx
#endif
