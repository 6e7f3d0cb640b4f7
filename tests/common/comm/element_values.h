#pragma once
// Buffers of any element type, filled from and read as doubles.

#include <bit>
#include <cstring>
#include <type_traits>
#include <vector>

#include "common/base/dtype.h"
#include "common/comm/communicator.h"

namespace tandem::test {

using base::DType;

inline constexpr DType allTypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64, DType::i32,
                                     DType::u64, DType::u32, DType::u16,  DType::u8,  DType::i8};

// Whole numbers from 0 to 2047 as binary16, written down anew so that the tests do not share the library's code.
inline std::uint16_t halfOf(int value) {
  if (value == 0) return 0;
  const int exponent = static_cast<int>(std::bit_width(static_cast<unsigned>(value))) - 1;
  const int fraction = (value << (10 - exponent)) & 0x3ff;
  return static_cast<std::uint16_t>(((exponent + 15) << 10) | fraction);
}

// Elements of a type whose values are small whole numbers.
class Elements {
 public:
  Elements(DType type, std::int64_t count)
      : type_(type), count_(count), bytes_(static_cast<std::size_t>(count * base::byteSize(type))) {}

  void set(std::int64_t index, int value) {
    auto store = [&](auto typed) { std::memcpy(at(index), &typed, sizeof typed); };
    switch (type_) {
      case DType::f64:
        return store(static_cast<double>(value));
      case DType::f32:
        return store(static_cast<float>(value));
      case DType::bf16:
        return store(base::BFloat16(static_cast<float>(value)));
      case DType::f16:
        return store(halfOf(value));
      case DType::i64:
        return store(static_cast<std::int64_t>(value));
      case DType::i32:
        return store(static_cast<std::int32_t>(value));
      case DType::u64:
        return store(static_cast<std::uint64_t>(value));
      case DType::u32:
        return store(static_cast<std::uint32_t>(value));
      case DType::u16:
        return store(static_cast<std::uint16_t>(value));
      case DType::u8:
        return store(static_cast<std::uint8_t>(value));
      case DType::i8:
        return store(static_cast<std::int8_t>(value));
    }
  }
  bool holds(std::int64_t index, int value) const {
    Elements expected(type_, 1);
    expected.set(0, value);
    return std::memcmp(at(index), expected.bytes_.data(), expected.bytes_.size()) == 0;
  }

  comm::Buffer buffer() { return {.data = bytes_.data(), .type = type_, .count = count_}; }
  comm::Buffer part(std::int64_t begin, std::int64_t count) {
    return {.data = at(begin), .type = type_, .count = count};
  }
  std::int64_t count() const { return count_; }

 private:
  std::byte* at(std::int64_t index) { return bytes_.data() + index * base::byteSize(type_); }
  const std::byte* at(std::int64_t index) const { return bytes_.data() + index * base::byteSize(type_); }

  DType type_;
  std::int64_t count_;
  std::vector<std::byte> bytes_;
};

// Uneven counts of pieces: 0, 7, 14, 21, ... elements, rotated so that another rank has none.
inline std::vector<std::int64_t> unevenCounts(int ranks, int rotation) {
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < ranks; ++rank) counts.push_back(7 * ((rank + rotation) % ranks));
  if (ranks == 1) counts[0] = 5;
  return counts;
}

inline std::int64_t sumOf(const std::vector<std::int64_t>& counts, int first) {
  std::int64_t total = 0;
  for (int i = 0; i < first; ++i) total += counts[static_cast<std::size_t>(i)];
  return total;
}

}  // namespace tandem::test
