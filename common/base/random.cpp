#include "common/base/random.h"

#include <cmath>
#include <numbers>

#include "common/base/error.h"

namespace tandem::base {

std::array<std::uint32_t, 4> philox(std::uint64_t key, std::uint64_t counterLow, std::uint64_t counterHigh) {
  constexpr std::uint64_t multiplier0 = 0xD2511F53u, multiplier1 = 0xCD9E8D57u;
  constexpr std::uint32_t weyl0 = 0x9E3779B9u, weyl1 = 0xBB67AE85u;
  auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
  auto high = [](std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); };
  std::uint32_t key0 = low(key), key1 = high(key);
  std::array<std::uint32_t, 4> c = {low(counterLow), high(counterLow), low(counterHigh), high(counterHigh)};
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = multiplier0 * c[0], product1 = multiplier1 * c[2];
    c = {high(product1) ^ c[1] ^ key0, low(product1), high(product0) ^ c[3] ^ key1, low(product0)};
    key0 += weyl0;
    key1 += weyl1;
  }
  return c;
}

std::uint64_t purposeOf(std::string_view name) {
  std::uint64_t hash = 14695981039346656037ull;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return hash;
}

RandomStream::RandomStream(std::uint64_t seed, std::uint64_t purpose) : seed_(seed), purpose_(purpose) {}

std::uint32_t RandomStream::nextWord() {
  if (position_ % 4 == 0) block_ = philox(seed_, position_ / 4, purpose_);
  return block_[position_++ % 4];
}

float RandomStream::nextUniform() { return static_cast<float>(nextWord() >> 8) * 0x1p-24f; }

std::uint64_t RandomStream::nextBelow(std::uint64_t bound) {
  TANDEM_ASSERT(bound > 0, "an empty range has no element");
  const std::uint64_t limit = UINT64_MAX - UINT64_MAX % bound;  // above it the remainder would be biased
  for (;;) {
    const std::uint64_t high = nextWord();
    const std::uint64_t value = (high << 32) | nextWord();
    if (value < limit) return value % bound;
  }
}

float RandomStream::nextNormal() {
  const double u = (static_cast<double>(nextWord()) + 0.5) * 0x1p-32;
  const double v = (static_cast<double>(nextWord()) + 0.5) * 0x1p-32;
  return static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v));
}

void fillNormal(std::uint64_t seed, std::uint64_t purpose, std::int64_t begin, float deviation,
                std::span<float> target) {
  // Each block of four words gives the four normals 4b .. 4b+3.
  std::array<float, 4> normals{};
  std::int64_t block = -1;
  for (std::size_t i = 0; i < target.size(); ++i) {
    const std::int64_t element = begin + static_cast<std::int64_t>(i);
    if (element / 4 != block) {
      block = element / 4;
      const auto words = philox(seed, static_cast<std::uint64_t>(block), purpose);
      for (std::size_t pair = 0; pair < 2; ++pair) {
        const float u = (static_cast<float>(words[2 * pair] >> 8) + 0.5f) * 0x1p-24f;
        const float angle = static_cast<float>(words[2 * pair + 1] >> 8) * (0x1p-24f * 2 * std::numbers::pi_v<float>);
        const float radius = std::sqrt(-2.0f * std::log(u));
        normals[2 * pair] = radius * std::cos(angle);
        normals[2 * pair + 1] = radius * std::sin(angle);
      }
    }
    target[i] = deviation * normals[static_cast<std::size_t>(element % 4)];
  }
}

Permutation::Permutation(std::uint64_t count, std::uint64_t seed, std::uint64_t epoch)
    : count_(count), seed_(seed), epoch_(epoch), halfBits_(1) {
  while (halfBits_ < 32 && (std::uint64_t{1} << (2 * halfBits_)) < count) ++halfBits_;
}

std::uint64_t Permutation::operator()(std::uint64_t index) const {
  TANDEM_ASSERT(index < count_, "index outside the permutation");
  const std::uint64_t mask = (std::uint64_t{1} << halfBits_) - 1;
  do {
    std::uint64_t left = index >> halfBits_, right = index & mask;
    for (std::uint64_t round = 0; round < 6; ++round) {
      const std::uint64_t mixed = philox(seed_, right, (epoch_ << 8) | round)[0] & mask;
      const std::uint64_t next = left ^ mixed;
      left = right;
      right = next;
    }
    index = (left << halfBits_) | right;
  } while (index >= count_);
  return index;
}

}  // namespace tandem::base
