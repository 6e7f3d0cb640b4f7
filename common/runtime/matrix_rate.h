#pragma once
// A short measurement of what this device's matrix products reach, to judge a step by where no peak is known.

#include "kernels/backend.h"

namespace tandem::runtime {

// Floating-point operations per second of [1024, 1024] x [1024, 1024] products in float32, the best of about a fifth of
// a second. All ranks of a node should measure at the same time, as they compute at the same time.
double measureMatrixRate(kernels::Backend& backend, kernels::Stream& stream);

}  // namespace tandem::runtime
