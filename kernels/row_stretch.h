#pragma once
// By what a column of Rescale is multiplied. Shared by all backends.

#include "kernels/anywhere.h"

namespace tandem::kernels {

// One over the length of a row; a row of zeros makes only zeros, for which any finite number will do.
template <class Number>
TANDEM_ANYWHERE constexpr Number rowReciprocal(Number changedNorm) {
  return changedNorm == Number{0} ? Number{0} : Number{1} / changedNorm;
}

// 1, exactly, where nothing has changed.
template <class Number>
TANDEM_ANYWHERE constexpr Number rowStretch(Number norm, Number gain, Number changedNorm) {
  return changedNorm == Number{0} ? Number{1} : (norm + gain) / changedNorm;
}

}  // namespace tandem::kernels
