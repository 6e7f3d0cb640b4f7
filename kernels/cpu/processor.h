#pragma once
// What the processor offers, as the kernels' run-time dispatch sees it.

#include <string>

namespace tandem::kernels::cpu {

// The instruction set that the kernels will use on this machine: "AVX2", "AVX3" (AVX-512), "NEON", "SVE", ...
std::string simdTarget();

bool isX86();

}  // namespace tandem::kernels::cpu
