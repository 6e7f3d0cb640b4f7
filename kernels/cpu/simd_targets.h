#pragma once
// Which instruction sets the kernels are compiled for; included before any header of Highway.
//
// A file of kernels is compiled once a target. x86-64 machines without AVX2 are too slow to train on, so they get the
// portable baseline and the targets in between are left out.

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
