#pragma once
// A KV cache in 8 bits. What a head has at one position, of keys or of values, is a row of bytes: a float32 scale, then
// a code from -127 to 127 for each number, filled up to whole words of four bytes; value = code * scale, with the scale
// such that the largest is 127. Caches then are int8 [batch, kvHeads, capacity, cacheRowBytes(headSize)], from a
// multiple of four bytes on.

#include <cstdint>

namespace tandem::kernels {

constexpr std::int64_t cacheScaleBytes = 4;
constexpr float largestCacheCode = 127;

constexpr std::int64_t cacheRowBytes(std::int64_t headSize) { return cacheScaleBytes + (headSize + 3) / 4 * 4; }

}  // namespace tandem::kernels
