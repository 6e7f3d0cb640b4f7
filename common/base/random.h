#pragma once
// Random numbers as a function of a position, not of a history: the same on every rank count and standard library.
//
// The generator is Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11): a bijection of
// a 128-bit counter under a 64-bit key, ten rounds.

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace tandem::base {

// The four 32-bit words at a counter. Two counters or keys that differ give independent words.
std::array<std::uint32_t, 4> philox(std::uint64_t key, std::uint64_t counterLow, std::uint64_t counterHigh = 0);

// A purpose or a stream for a name, the same everywhere (FNV-1a).
std::uint64_t purposeOf(std::string_view name);

// A stream of numbers: (seed, purpose) is the key, the position runs from 0. Copyable; the position is its whole state.
class RandomStream {
 public:
  RandomStream(std::uint64_t seed, std::uint64_t purpose);

  std::uint32_t nextWord();
  // Uniform in [0, 1), 24 bits.
  float nextUniform();
  // Uniform in [0, bound), without bias. bound > 0.
  std::uint64_t nextBelow(std::uint64_t bound);
  // Standard normal, by Box-Muller.
  float nextNormal();

 private:
  std::uint64_t seed_;
  std::uint64_t purpose_;
  std::uint64_t position_ = 0;  // counted in words
  std::array<std::uint32_t, 4> block_{};
};

// Element i of the target becomes deviation * n(begin + i), where n is a sequence of standard normal numbers that
// belongs to (seed, purpose): any slice can be made alone. Both halves of the Box-Muller transform are used.
void fillNormal(std::uint64_t seed, std::uint64_t purpose, std::int64_t begin, float deviation,
                std::span<float> target);

// A permutation of [0, count) that needs no memory: a six-round Feistel network over the next power of four, walked
// until it lands inside. Every (seed, epoch) gives another one.
class Permutation {
 public:
  Permutation(std::uint64_t count, std::uint64_t seed, std::uint64_t epoch);
  std::uint64_t operator()(std::uint64_t index) const;

 private:
  std::uint64_t count_;
  std::uint64_t seed_;
  std::uint64_t epoch_;
  int halfBits_;
};

}  // namespace tandem::base
