#pragma once
// The activation functions of one argument and their derivatives.

#include <cmath>
#include <numbers>

#include "kernels/backend.h"

namespace tandem::kernels::reference {

// GELU(x) = x * Phi(x); geluTanh is the approximation of Hendrycks & Gimpel that GPT-2 uses. A NaN stays one.
inline double activate(ActivationKind kind, double x) {
  switch (kind) {
    case ActivationKind::geluTanh: {
      const double inner = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
      return 0.5 * x * (1 + std::tanh(inner));
    }
    case ActivationKind::geluErf:
      return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2));
    case ActivationKind::relu2:
      return x < 0 ? 0 : x * x;
    default:
      return x;
  }
}

inline double activateDerivative(ActivationKind kind, double x) {
  switch (kind) {
    case ActivationKind::geluTanh: {
      const double factor = std::sqrt(2 / std::numbers::pi);
      const double tanh = std::tanh(factor * (x + 0.044715 * x * x * x));
      return 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * factor * (1 + 3 * 0.044715 * x * x);
    }
    case ActivationKind::geluErf:
      return 0.5 * (1 + std::erf(x / std::numbers::sqrt2)) +
             x * std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi);
    case ActivationKind::relu2:
      return x < 0 ? 0 : 2 * x;
    default:
      return 1;
  }
}

}  // namespace tandem::kernels::reference
