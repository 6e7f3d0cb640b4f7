#pragma once
// Names of cases: label({{"rows", 3}, {"width", 17}}) is "rows3_width17".

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>

#include "kernels/backend.h"

namespace tandem::kernels::test {

inline std::string label(std::initializer_list<std::pair<const char*, std::int64_t>> parts) {
  std::string text;
  for (const auto& [name, value] : parts) text += (text.empty() ? "" : "_") + std::string(name) + std::to_string(value);
  return text;
}

inline std::string label(ActivationKind kind) {
  switch (kind) {
    case ActivationKind::none:
      return "none";
    case ActivationKind::geluTanh:
      return "geluTanh";
    case ActivationKind::geluErf:
      return "geluErf";
    case ActivationKind::relu2:
      return "relu2";
    case ActivationKind::swiglu:
      return "swiglu";
  }
  return "unknown";
}

}  // namespace tandem::kernels::test
