#pragma once
// Gradients of the reference against differences of its forward operators, both in float64.

#include <string>

#include "tests/kernels/operators/operator_case.h"

namespace tandem::kernels::test {

// Describes the derivatives that are wrong; empty when none is.
std::string checkDerivatives(const Case& recipe);

}  // namespace tandem::kernels::test
