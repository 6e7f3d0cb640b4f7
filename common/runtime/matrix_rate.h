#pragma once
// A short measurement of what this device's matrix products reach, to judge a step by where no peak is known.

#include "kernels/backend.h"

namespace tandem::runtime {

// Floating-point operations per second of products of square matrices of a storage type, as large as the device needs
// to be busy (256 to 8192 rows); the best of about a fifth of a second. All ranks of a node should measure at the same
// time, as they compute at the same time.
double measureMatrixRate(base::DType storage, kernels::Backend& backend, kernels::Stream& stream);

// The best of that time, and its mean, which is less where ranks share processors: each is then alone on one now and
// then, and what it has of it as long as all compute is the mean.
struct MatrixRates {
  double best = 0;
  double mean = 0;
};
MatrixRates measureMatrixRates(base::DType storage, kernels::Backend& backend, kernels::Stream& stream);

}  // namespace tandem::runtime
