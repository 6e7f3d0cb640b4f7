#pragma once
// What a backend owes to the reference: the same numbers, nothing written elsewhere, no NaN hidden.
//
// Every function returns a description of what is wrong, empty when nothing is.

#include <string>

#include "tests/kernels/operators/operator_case.h"

namespace tandem::kernels::test {

// Each step alone, from what the reference made of the steps before it: compares all results, and that nothing else was
// touched. `shift`: elements by which all data pointers miss their alignment.
std::string compareSteps(const Case& recipe, DType varied, Backend& tested, int shift = 0);

// All steps in a row, each on what the backend itself made before, so that a forward pass and the backward pass that
// reads its statistics fit together. The derivatives are compared with the reference's in float64.
std::string comparePass(const Case& recipe, DType varied, Backend& tested);

// A NaN or an infinity in any operand that makes results of the reference non-finite must make them so here.
std::string compareNonFinite(const Case& recipe, DType varied, Backend& tested);

// Runs all steps twice; all bits must be equal.
std::string compareRepetition(const Case& recipe, DType varied, Backend& tested);

}  // namespace tandem::kernels::test
