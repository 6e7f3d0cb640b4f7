#pragma once
// The instruction sets of the attention kernels: all but SVE, whose vectors cannot be held in arrays of accumulators.
// NEON serves those machines.

#include "kernels/cpu/simd_targets.h"

#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (TANDEM_LEFT_OUT_TARGETS | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
