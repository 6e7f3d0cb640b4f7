// Sums of products of bytes, eight rows of a quantised block side by side: the heart of
// kernels/cpu/quantised_linear.cpp. Compiled once a target, like simd.h, which is included before.
//
// A group of a block is 32 inputs of eight rows. Each of the eight lanes of a sum belongs to a row, and takes four
// inputs at a time: the word of four activations is repeated in all lanes.
#if defined(TANDEM_KERNELS_CPU_BYTE_PRODUCTS_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_KERNELS_CPU_BYTE_PRODUCTS_H
#undef TANDEM_KERNELS_CPU_BYTE_PRODUCTS_H
#else
#define TANDEM_KERNELS_CPU_BYTE_PRODUCTS_H
#endif

#include <cstdint>
#include <cstring>

#include "kernels/quantised.h"

#undef TANDEM_BYTES_AVX2
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
#define TANDEM_BYTES_AVX2 1
#else
#define TANDEM_BYTES_AVX2 0
#endif

HWY_BEFORE_NAMESPACE();
namespace tandem::kernels::cpu::HWY_NAMESPACE {

constexpr int wordsOfGroup = static_cast<int>(quantisedGroup / 4);
constexpr int lanesOfBlock = static_cast<int>(quantisedBlock);

#if TANDEM_BYTES_AVX2

// Eight floats, one a row.
using BlockFloats = __m256;
HWY_INLINE BlockFloats zeroFloats() { return _mm256_setzero_ps(); }
HWY_INLINE BlockFloats loadFloats(const float* from) { return _mm256_loadu_ps(from); }
HWY_INLINE BlockFloats loadHalves(const std::uint16_t* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
HWY_INLINE void storeFloats(BlockFloats value, float* to) { _mm256_storeu_ps(to, value); }
HWY_INLINE BlockFloats times(BlockFloats value, float factor) { return _mm256_mul_ps(value, _mm256_set1_ps(factor)); }
HWY_INLINE BlockFloats times(BlockFloats value, BlockFloats factors) { return _mm256_mul_ps(value, factors); }
HWY_INLINE BlockFloats plusTimes(BlockFloats sum, BlockFloats value, BlockFloats factors) {
  return _mm256_fmadd_ps(value, factors, sum);
}
HWY_INLINE BlockFloats plusTimes(BlockFloats sum, BlockFloats value, float factor) {
  return _mm256_fmadd_ps(value, _mm256_set1_ps(factor), sum);
}

HWY_INLINE __m256i wordInAllLanes(const std::int8_t* activations, int word) {
  std::int32_t value;
  std::memcpy(&value, activations + 4 * word, sizeof value);
  return _mm256_set1_epi32(value);
}
HWY_INLINE __m256i loadCodes(const std::uint8_t* codes, int vector) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes) + vector);
}

// sum + the products of four unsigned and four signed bytes a lane. Two such products must fit int16.
HWY_INLINE __m256i addProducts(__m256i sum, __m256i unsignedBytes, __m256i signedBytes) {
#ifdef __AVX512VNNI__
  return _mm256_dpbusd_epi32(sum, unsignedBytes, signedBytes);
#else
  const __m256i pairs = _mm256_maddubs_epi16(unsignedBytes, signedBytes);
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#endif
}

// sums[r] = the products of a group of codes with the group of row r of the activations, which lie `pitch` apart.
template <int rows>
HWY_INLINE void groupProducts4(const std::uint8_t* codes, const std::int8_t* activations, std::int64_t pitch,
                               BlockFloats* sums) {
  const __m256i lowerHalves = _mm256_set1_epi8(15);
  __m256i totals[static_cast<std::size_t>(rows)];
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) totals[r] = _mm256_setzero_si256();
#pragma GCC unroll 4
  for (int vector = 0; vector < wordsOfGroup / 2; ++vector) {
    const __m256i both = loadCodes(codes, vector);
    const __m256i lower = _mm256_and_si256(both, lowerHalves);
    const __m256i upper = _mm256_and_si256(_mm256_srli_epi16(both, 4), lowerHalves);
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      const __m256i first = wordInAllLanes(activations + r * pitch, vector);
      const __m256i second = wordInAllLanes(activations + r * pitch, vector + wordsOfGroup / 2);
#ifdef __AVX512VNNI__
      totals[r] = addProducts(addProducts(totals[r], lower, first), upper, second);
#else
      // 16 products of at most 15 * 128 fit int16, so that they are widened once a group.
      const __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(lower, first), _mm256_maddubs_epi16(upper, second));
      totals[r] = _mm256_add_epi16(totals[r], pairs);
#endif
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) {
#ifndef __AVX512VNNI__
    totals[r] = _mm256_madd_epi16(totals[r], _mm256_set1_epi16(1));
#endif
    sums[r] = _mm256_cvtepi32_ps(totals[r]);
  }
}

template <int rows>
HWY_INLINE void groupProducts8(const std::uint8_t* codes, const std::int8_t* activations, std::int64_t pitch,
                               BlockFloats* sums) {
  __m256i totals[static_cast<std::size_t>(rows)];
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) totals[r] = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (int vector = 0; vector < wordsOfGroup; ++vector) {
    const __m256i both = loadCodes(codes, vector);
    const __m256i magnitudes = _mm256_abs_epi8(both);
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      const __m256i signedWord = _mm256_sign_epi8(wordInAllLanes(activations + r * pitch, vector), both);
      totals[r] = addProducts(totals[r], magnitudes, signedWord);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) sums[r] = _mm256_cvtepi32_ps(totals[r]);
}

#else

struct BlockFloats {
  float lane[lanesOfBlock];
};
template <class Function>
HWY_INLINE BlockFloats eachLane(const Function& function) {
  BlockFloats result;
  for (int lane = 0; lane < lanesOfBlock; ++lane) result.lane[lane] = function(lane);
  return result;
}
HWY_INLINE BlockFloats zeroFloats() { return BlockFloats{}; }
HWY_INLINE BlockFloats loadFloats(const float* from) {
  return eachLane([=](int lane) { return from[lane]; });
}
HWY_INLINE BlockFloats loadHalves(const std::uint16_t* from) {
  return eachLane([=](int lane) {
    base::Float16 half;
    half.bits = from[lane];
    return static_cast<float>(half);
  });
}
HWY_INLINE void storeFloats(const BlockFloats& value, float* to) { std::memcpy(to, value.lane, sizeof value.lane); }
HWY_INLINE BlockFloats times(const BlockFloats& value, float factor) {
  return eachLane([&](int lane) { return value.lane[lane] * factor; });
}
HWY_INLINE BlockFloats times(const BlockFloats& value, const BlockFloats& factors) {
  return eachLane([&](int lane) { return value.lane[lane] * factors.lane[lane]; });
}
HWY_INLINE BlockFloats plusTimes(const BlockFloats& sum, const BlockFloats& value, const BlockFloats& factors) {
  return eachLane([&](int lane) { return sum.lane[lane] + value.lane[lane] * factors.lane[lane]; });
}
HWY_INLINE BlockFloats plusTimes(const BlockFloats& sum, const BlockFloats& value, float factor) {
  return eachLane([&](int lane) { return sum.lane[lane] + value.lane[lane] * factor; });
}

// The inner loops have constant bounds and no branch, which compilers turn into the target's byte products.
template <int rows>
HWY_INLINE void groupProducts4(const std::uint8_t* codes, const std::int8_t* activations, std::int64_t pitch,
                               BlockFloats* sums) {
  for (int r = 0; r < rows; ++r) {
    std::int32_t totals[lanesOfBlock] = {};
    for (int word = 0; word < wordsOfGroup / 2; ++word) {
      const std::int8_t* first = activations + r * pitch + 4 * word;
      const std::int8_t* second = first + quantisedGroup / 2;
      for (int lane = 0; lane < lanesOfBlock; ++lane) {
        for (int i = 0; i < 4; ++i) {
          const std::uint8_t both = codes[(word * lanesOfBlock + lane) * 4 + i];
          totals[lane] += (both & 15) * first[i] + (both >> 4) * second[i];
        }
      }
    }
    sums[r] = eachLane([&](int lane) { return static_cast<float>(totals[lane]); });
  }
}

template <int rows>
HWY_INLINE void groupProducts8(const std::uint8_t* codes, const std::int8_t* activations, std::int64_t pitch,
                               BlockFloats* sums) {
  for (int r = 0; r < rows; ++r) {
    std::int32_t totals[lanesOfBlock] = {};
    for (int word = 0; word < wordsOfGroup; ++word) {
      const std::int8_t* four = activations + r * pitch + 4 * word;
      for (int lane = 0; lane < lanesOfBlock; ++lane) {
        for (int i = 0; i < 4; ++i) {
          totals[lane] += static_cast<std::int8_t>(codes[(word * lanesOfBlock + lane) * 4 + i]) * four[i];
        }
      }
    }
    sums[r] = eachLane([&](int lane) { return static_cast<float>(totals[lane]); });
  }
}

#endif

}  // namespace tandem::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
