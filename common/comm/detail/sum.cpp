#include "common/comm/detail/sum.h"

#include <algorithm>

#include "common/comm/detail/checks.h"
#include "common/comm/detail/float16.h"

namespace tandem::comm::detail {
namespace {

constexpr std::int64_t blockSize = 2048;  // elements that are summed while they stay in the first cache

template <class Number>
void addUpAs(std::span<const void* const> contributions, std::int64_t count, void* sum) {
  Number block[blockSize];
  for (std::int64_t begin = 0; begin < count; begin += blockSize) {
    const std::int64_t length = std::min(blockSize, count - begin);
    std::copy_n(static_cast<const Number*>(contributions[0]) + begin, length, block);
    for (const void* each : contributions.subspan(1)) {
      const Number* const values = static_cast<const Number*>(each) + begin;
      for (std::int64_t i = 0; i < length; ++i) block[i] = static_cast<Number>(block[i] + values[i]);
    }
    std::copy_n(block, length, static_cast<Number*>(sum) + begin);
  }
}

void addUpFloat16(std::span<const void* const> contributions, base::DType type, std::int64_t count, void* sum) {
  float block[blockSize], values[blockSize];
  for (std::int64_t begin = 0; begin < count; begin += blockSize) {
    const std::int64_t length = std::min(blockSize, count - begin);
    widen(at(contributions[0], begin, type), type, length, block);
    for (const void* each : contributions.subspan(1)) {
      widen(at(each, begin, type), type, length, values);
      for (std::int64_t i = 0; i < length; ++i) block[i] += values[i];
    }
    narrow(block, length, type, at(sum, begin, type));
  }
}

}  // namespace

void addUp(std::span<const void* const> contributions, base::DType type, std::int64_t count, void* sum) {
  using base::DType;
  switch (type) {
    case DType::f64:
      return addUpAs<double>(contributions, count, sum);
    case DType::f32:
      return addUpAs<float>(contributions, count, sum);
    case DType::bf16:
    case DType::f16:
      return addUpFloat16(contributions, type, count, sum);
    case DType::i64:
      return addUpAs<std::int64_t>(contributions, count, sum);
    case DType::i32:
      return addUpAs<std::int32_t>(contributions, count, sum);
    case DType::u64:
      return addUpAs<std::uint64_t>(contributions, count, sum);
    case DType::u32:
      return addUpAs<std::uint32_t>(contributions, count, sum);
    case DType::u16:
      return addUpAs<std::uint16_t>(contributions, count, sum);
    case DType::u8:
      return addUpAs<std::uint8_t>(contributions, count, sum);
    case DType::i8:
      return addUpAs<std::int8_t>(contributions, count, sum);
  }
}

}  // namespace tandem::comm::detail
