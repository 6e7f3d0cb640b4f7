#pragma once
// Which elements dropout takes away: a function of the row's key, the node and the element's place in its row, so that
// the backward pass needs no stored mask and every rank count sees the same one. Shared by all backends.

#include <cstdint>

#include "kernels/anywhere.h"

namespace tandem::kernels {

// The output function of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA
// 2014).
TANDEM_ANYWHERE constexpr std::uint64_t mixBits(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// A key of a row (two int32) and the number of the node.
TANDEM_ANYWHERE constexpr std::uint64_t dropoutStream(std::int32_t low, std::int32_t high, std::uint32_t purpose) {
  const std::uint64_t key =
      static_cast<std::uint64_t>(static_cast<std::uint32_t>(high)) << 32 | static_cast<std::uint32_t>(low);
  return mixBits(key ^ mixBits(std::uint64_t{purpose} + 1));
}

// Whether the element is dropped; threshold is dropoutThreshold(rate).
TANDEM_ANYWHERE constexpr bool isDropped(std::uint64_t stream, std::uint64_t element, std::uint32_t threshold) {
  const std::uint64_t bits = mixBits(stream + (element + 1) * 0x9E3779B97F4A7C15u);
  return static_cast<std::uint32_t>(bits >> 32) < threshold;
}

// The share of 32-bit numbers below it is the rate, from 0 to below 1.
constexpr std::uint32_t dropoutThreshold(float rate) {
  return static_cast<std::uint32_t>(static_cast<double>(rate) * 0x1p32);
}

}  // namespace tandem::kernels
