#pragma once
// Shapes: up to five 64-bit extents, row-major, held without an allocation.

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "common/base/error.h"

namespace tandem::base {

class Shape {
 public:
  static constexpr int maxRank = 5;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> extents) {
    for (const std::int64_t extent : extents) append(extent);
  }

  int rank() const { return rank_; }
  std::int64_t operator[](int axis) const { return extents_[index(axis)]; }
  std::int64_t& operator[](int axis) { return extents_[index(axis)]; }
  // The last extent; 1 for a scalar.
  std::int64_t last() const { return rank_ == 0 ? 1 : extents_[index(rank_ - 1)]; }
  void append(std::int64_t extent) {
    TANDEM_ASSERT(rank_ < maxRank, "a shape has at most five extents");
    extents_[static_cast<std::size_t>(rank_++)] = extent;
  }
  // Number of elements; 1 for a scalar.
  std::int64_t count() const {
    std::int64_t product = 1;
    for (int axis = 0; axis < rank_; ++axis) product *= (*this)[axis];
    return product;
  }
  // Number of rows when all but the last axis are folded into one.
  std::int64_t rows() const { return last() == 0 ? 0 : count() / last(); }
  bool operator==(const Shape& other) const {
    if (rank_ != other.rank_) return false;
    for (int axis = 0; axis < rank_; ++axis) {
      if ((*this)[axis] != other[axis]) return false;
    }
    return true;
  }
  // "[4, 256, 768]"
  std::string text() const {
    std::string result = "[";
    for (int axis = 0; axis < rank_; ++axis) result += (axis ? ", " : "") + std::to_string((*this)[axis]);
    return result + "]";
  }

 private:
  std::size_t index(int axis) const {
    TANDEM_ASSERT(axis >= 0 && axis < rank_, "axis out of range");
    return static_cast<std::size_t>(axis);
  }

  std::array<std::int64_t, maxRank> extents_{};
  int rank_ = 0;
};

}  // namespace tandem::base
