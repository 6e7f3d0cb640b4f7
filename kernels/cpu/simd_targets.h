#pragma once
// Which instruction sets the kernels are compiled for; included before any header of Highway.
//
// A file of kernels is compiled once a target. x86-64 machines without AVX2 are too slow to train on, so they get the
// portable baseline and the targets in between are left out.

//
// Under a sanitizer, where a file takes a minute to compile, the baseline and AVX2 stand for all: the source is the same.

#ifdef TANDEM_SANITIZED
#define TANDEM_LEFT_OUT_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3 | HWY_AVX3_DL)
#else
#define TANDEM_LEFT_OUT_TARGETS (HWY_SSSE3 | HWY_SSE4)
#endif
#define HWY_DISABLED_TARGETS TANDEM_LEFT_OUT_TARGETS
