#include "common/comm/detail/float16.h"

namespace tandem::comm::detail {

bool isFloat16(base::DType type) { return type == base::DType::bf16 || type == base::DType::f16; }

void widen(const void* source, base::DType type, std::int64_t count, float* target) {
  if (type == base::DType::bf16) {
    const auto* values = static_cast<const base::BFloat16*>(source);
    for (std::int64_t i = 0; i < count; ++i) target[i] = static_cast<float>(values[i]);
  } else {
    const auto* values = static_cast<const base::Float16*>(source);
    for (std::int64_t i = 0; i < count; ++i) target[i] = static_cast<float>(values[i]);
  }
}

void narrow(const float* source, std::int64_t count, base::DType type, void* target) {
  if (type == base::DType::bf16) {
    auto* values = static_cast<base::BFloat16*>(target);
    for (std::int64_t i = 0; i < count; ++i) values[i] = base::BFloat16(source[i]);
  } else {
    auto* values = static_cast<base::Float16*>(target);
    for (std::int64_t i = 0; i < count; ++i) values[i] = base::Float16(source[i]);
  }
}

}  // namespace tandem::comm::detail
