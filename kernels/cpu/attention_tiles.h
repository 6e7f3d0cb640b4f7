// Pieces of the attention kernels: the block product held in registers, the packing of its operands, 2^x. Compiled
// once a target.
//
// Scores are kept transposed, keys down and queries across, so that the softmax works on whole vectors of queries and
// needs no sum over lanes. All products of attention, forward and backward, then have one form: a strip of `stripRows`
// rows of A, read by broadcasts, times a panel of `panelWidth` columns of B, packed contiguously.
#if defined(TANDEM_KERNELS_CPU_ATTENTION_TILES_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_KERNELS_CPU_ATTENTION_TILES_H
#undef TANDEM_KERNELS_CPU_ATTENTION_TILES_H
#else
#define TANDEM_KERNELS_CPU_ATTENTION_TILES_H
#endif

#include <cstring>
#include <utility>

#include "kernels/cpu/attention_operands.h"
#include "kernels/cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::kernels::cpu::HWY_NAMESPACE {

constexpr std::int64_t laneCount = static_cast<std::int64_t>(hn::MaxLanes(Floats()));
constexpr std::int64_t panelWidth = 2 * laneCount;

// Sixteen registers hold 6 x 2 accumulators, thirty-two 8 x 2. A tile of queries is a multiple of both strip and panel,
// a block of keys a multiple of the strip; the sizes keep a tile's scores and a panel in the first level of the cache.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SCALAR
constexpr std::int64_t stripRows = 6;
constexpr std::int64_t queryTile = 48;
#else
constexpr std::int64_t stripRows = 8;
constexpr std::int64_t queryTile = 64;
#endif
constexpr std::int64_t keyBlock = 96;
static_assert(queryTile % stripRows == 0 && queryTile % panelWidth == 0 && keyBlock % stripRows == 0);

constexpr float log2OfE = 1.44269504088896341f;
constexpr float lnOf2 = 0.69314718055994531f;

// How the columns of a head are laid out in packed memory.
struct HeadPadding {
  explicit HeadPadding(std::int64_t headSize)
      : size(headSize),
        rowStride(roundUp(headSize, laneCount)),
        panels((headSize + panelWidth - 1) / panelWidth),
        panelStride(panels * panelWidth) {}
  std::int64_t size;
  std::int64_t rowStride;    // of rows read by broadcasts
  std::int64_t panels;       // of columns
  std::int64_t panelStride;  // of rows of results
};

// 2^x for x <= 0 (and NaN): exact zero below 2^-126, relative error 1e-7. Adding `shift` rounds x to an integer n in
// the low bits, which then is moved to the exponent; the polynomial is the minimax fit of 2^f on [-1/2, 1/2].
HWY_INLINE Vector powerOf2(Vector x) {
  const Vector shift = set(12582912.0f + 127.0f);
  const Vector shifted = hn::Add(x, shift);
  const Vector fraction = hn::Sub(x, hn::Sub(shifted, shift));
  const Vector power = hn::BitCast(Floats(), hn::ShiftLeft<23>(hn::BitCast(Words(), shifted)));
  Vector p = hn::MulAdd(set(0.0013276428f), fraction, set(0.009675541f));
  p = hn::MulAdd(p, fraction, set(0.055507135f));
  p = hn::MulAdd(p, fraction, set(0.2402212f));
  p = hn::MulAdd(p, fraction, set(0.69314694f));
  p = hn::MulAdd(p, fraction, set(1.0000001f));
  return hn::IfThenZeroElse(hn::Lt(x, set(-126.0f)), hn::Mul(p, power));
}

// --- the block product -----------------------------------------------------------------------------------------------

// Where a strip of A lies: element (row, k) is data[row * rowStride + k] or, with kTransposed, data[k * rowStride +
// row].
template <bool kTransposed>
HWY_INLINE float stripElement(const float* a, std::int64_t stride, std::int64_t row, std::int64_t k) {
  return kTransposed ? a[k * stride + row] : a[row * stride + k];
}

template <std::size_t kVectors, bool kTransposed, std::size_t... kRows>
HWY_INLINE void multiplyRows(std::index_sequence<kRows...>, const float* HWY_RESTRICT a, std::int64_t strideA,
                             const float* HWY_RESTRICT b, std::int64_t depth, float* HWY_RESTRICT c,
                             std::int64_t strideC, bool accumulate) {
  const Floats floats;
  Vector sums[sizeof...(kRows)][kVectors];
  if (accumulate) {
    ((sums[kRows][0] = hn::LoadU(floats, c + static_cast<std::int64_t>(kRows) * strideC)), ...);
    if constexpr (kVectors == 2) {
      ((sums[kRows][1] = hn::LoadU(floats, c + static_cast<std::int64_t>(kRows) * strideC + laneCount)), ...);
    }
  } else {
    ((sums[kRows][0] = hn::Zero(floats)), ...);
    if constexpr (kVectors == 2) ((sums[kRows][1] = hn::Zero(floats)), ...);
  }
  for (std::int64_t k = 0; k < depth; ++k) {
    const Vector left = hn::LoadU(floats, b + k * panelWidth);
    if constexpr (kVectors == 2) {
      const Vector right = hn::LoadU(floats, b + k * panelWidth + laneCount);
      const auto step = [&](Vector(&row)[kVectors], float factor) TANDEM_SIMD_LAMBDA {
        const Vector broadcast = set(factor);
        row[0] = hn::MulAdd(broadcast, left, row[0]);
        row[1] = hn::MulAdd(broadcast, right, row[1]);
      };
      (step(sums[kRows], stripElement<kTransposed>(a, strideA, static_cast<std::int64_t>(kRows), k)), ...);
    } else {
      ((sums[kRows][0] = hn::MulAdd(set(stripElement<kTransposed>(a, strideA, static_cast<std::int64_t>(kRows), k)),
                                    left, sums[kRows][0])),
       ...);
    }
  }
  (hn::StoreU(sums[kRows][0], floats, c + static_cast<std::int64_t>(kRows) * strideC), ...);
  if constexpr (kVectors == 2) {
    (hn::StoreU(sums[kRows][1], floats, c + static_cast<std::int64_t>(kRows) * strideC + laneCount), ...);
  }
}

// C[stripRows, columns] (+)= A[stripRows, depth] B[depth, columns]: one strip times one panel of at most panelWidth
// columns. Columns beyond `columns` may be written.
template <bool kTransposed>
HWY_NOINLINE void multiplyStrip(const float* a, std::int64_t strideA, const float* b, std::int64_t depth, float* c,
                                std::int64_t strideC, std::int64_t columns, bool accumulate) {
  using Rows = std::make_index_sequence<static_cast<std::size_t>(stripRows)>;
  if (columns > laneCount) {
    multiplyRows<2, kTransposed>(Rows(), a, strideA, b, depth, c, strideC, accumulate);
  } else {
    multiplyRows<1, kTransposed>(Rows(), a, strideA, b, depth, c, strideC, accumulate);
  }
}

// --- packing ---------------------------------------------------------------------------------------------------------

// Rows as they are, in float32, followed by zero rows up to a whole strip.
template <class Element>
void packRows(const Element* from, std::int64_t stride, std::int64_t rows, const HeadPadding& head, float* to) {
  for (std::int64_t row = 0; row < rows; ++row) {
    forVectors(head.size, [&](std::int64_t i, auto extent) TANDEM_SIMD_LAMBDA {
      hn::StoreU(load(from + row * stride + i, extent), Floats(), to + row * head.rowStride + i);
    });
  }
  const std::int64_t padding = roundUp(rows, stripRows) - rows;
  std::memset(to + rows * head.rowStride, 0, static_cast<std::size_t>(padding * head.rowStride) * sizeof(float));
}

// Panels of columns, [panel][row][panelWidth], with room for `capacity` rows each.
template <class Element>
void packPanels(const Element* from, std::int64_t stride, std::int64_t rows, const HeadPadding& head,
                std::int64_t capacity, float* to) {
  for (std::int64_t row = 0; row < rows; ++row) {
    forVectors(head.size, [&](std::int64_t i, auto extent) TANDEM_SIMD_LAMBDA {
      float* place = to + (i / panelWidth * capacity + row) * panelWidth + i % panelWidth;
      hn::StoreU(load(from + row * stride + i, extent), Floats(), place);
    });
  }
}

// Rows that are transposed together.
constexpr std::int64_t transposedRows = std::min<std::int64_t>(4, panelWidth);

// Some rows by four columns, transposed: to[i * panelWidth + row] = scale * from[row * stride + i].
#if HWY_TARGET == HWY_SCALAR
template <class Element>
void transposeQuad(const Element* from, std::int64_t stride, float scale, float* to) {
  for (std::int64_t row = 0; row < transposedRows; ++row) {
    for (std::int64_t i = 0; i < 4; ++i) to[i * panelWidth + row] = scale * static_cast<float>(from[row * stride + i]);
  }
}
#else
using Quad = hn::FixedTag<float, 4>;
HWY_INLINE hn::Vec<Quad> loadQuad(const float* from) { return hn::LoadU(Quad(), from); }
HWY_INLINE hn::Vec<Quad> loadQuad(const BFloat16* from) {
  const hn::Rebind<std::uint16_t, Quad> halves;
  const hn::Rebind<std::uint32_t, Quad> words;
  const auto bits = hn::PromoteTo(words, hn::LoadU(halves, reinterpret_cast<const std::uint16_t*>(from)));
  return hn::BitCast(Quad(), hn::ShiftLeft<16>(bits));
}
HWY_INLINE hn::Vec<Quad> loadQuad(const Float16* from) {
  const hn::Rebind<std::uint16_t, Quad> halves;
  return fromFloat16(Quad(), hn::LoadU(halves, reinterpret_cast<const std::uint16_t*>(from)));
}
template <class Element>
HWY_INLINE void transposeQuad(const Element* from, std::int64_t stride, float scale, float* to) {
  const Quad quad;
  const auto row0 = loadQuad(from), row1 = loadQuad(from + stride);
  const auto row2 = loadQuad(from + 2 * stride), row3 = loadQuad(from + 3 * stride);
  const auto even = hn::InterleaveLower(quad, row0, row2), odd = hn::InterleaveLower(quad, row1, row3);
  const auto evenUpper = hn::InterleaveUpper(quad, row0, row2), oddUpper = hn::InterleaveUpper(quad, row1, row3);
  const auto factor = hn::Set(quad, scale);
  hn::StoreU(hn::Mul(factor, hn::InterleaveLower(quad, even, odd)), quad, to);
  hn::StoreU(hn::Mul(factor, hn::InterleaveUpper(quad, even, odd)), quad, to + panelWidth);
  hn::StoreU(hn::Mul(factor, hn::InterleaveLower(quad, evenUpper, oddUpper)), quad, to + 2 * panelWidth);
  hn::StoreU(hn::Mul(factor, hn::InterleaveUpper(quad, evenUpper, oddUpper)), quad, to + 3 * panelWidth);
}
#endif

// Panels of rows, [panel][column][panelWidth rows], times scale; rows up to a whole panel are zero.
template <class Element>
void packTransposed(const Element* from, std::int64_t stride, std::int64_t rows, const HeadPadding& head, float scale,
                    float* to) {
  for (std::int64_t row = 0; row < roundUp(rows, panelWidth); row += transposedRows) {
    const Element* source = from + row * stride;
    float* target = to + row / panelWidth * panelWidth * head.size + row % panelWidth;
    std::int64_t i = 0;
    for (; row + transposedRows <= rows && i + 4 <= head.size; i += 4) {
      transposeQuad(source + i, stride, scale, target + i * panelWidth);
    }
    for (; i < head.size; ++i) {
      for (std::int64_t r = 0; r < transposedRows; ++r) {
        target[i * panelWidth + r] = row + r < rows ? scale * static_cast<float>(source[r * stride + i]) : 0.0f;
      }
    }
  }
}

// to[i] = factor * from[i] in the storage type of the result.
template <class From, class To>
HWY_INLINE void storeScaled(const From* from, float factor, std::int64_t count, To* to) {
  forVectors(count, [&](std::int64_t i, auto extent)
                        TANDEM_SIMD_LAMBDA { store(hn::Mul(set(factor), load(from + i, extent)), to + i, extent); });
}

template <class ElementA, class ElementB>
HWY_INLINE float dotProduct(const ElementA* a, const ElementB* b, std::int64_t count) {
  return sumVectors(count, [&](std::int64_t i, auto extent, Vector sum) TANDEM_SIMD_LAMBDA {
    return hn::MulAdd(load(a + i, extent), load(b + i, extent), sum);
  });
}

// --- visibility ------------------------------------------------------------------------------------------------------

// Which keys a panel of queries sees, as absolute places: outside `any` none of its queries sees a key, inside `all`
// every one does.
struct PanelVisibility {
  Range any, all;
};

// `first` and `own` are the first and last visible key of each of the panel's `queries` queries.
inline PanelVisibility panelVisibility(const std::int32_t* first, const std::int32_t* own, std::int64_t queries) {
  const auto [lowestFirst, highestFirst] = std::minmax_element(first, first + queries);
  const auto [lowestOwn, highestOwn] = std::minmax_element(own, own + queries);
  return {{*lowestFirst, *highestOwn + 1}, {*highestFirst, *lowestOwn + 1}};
}

// The part of `range` in the block of keys that begins at `blockBegin`, counted from there.
inline Range withinBlock(const Range& range, std::int64_t blockBegin, std::int64_t blockKeys) {
  return {std::clamp<std::int64_t>(range.begin - blockBegin, 0, blockKeys),
          std::clamp<std::int64_t>(range.end - blockBegin, 0, blockKeys)};
}

HWY_INLINE hn::Mask<Floats> isVisible(std::int64_t key, const std::int32_t* first, const std::int32_t* own) {
  const Integers integers;
  const auto place = hn::Set(integers, static_cast<std::int32_t>(key));
  const auto tooEarly = hn::Lt(place, hn::LoadU(integers, first));
  const auto tooLate = hn::Gt(place, hn::LoadU(integers, own));
  return hn::RebindMask(Floats(), hn::Not(hn::Or(tooEarly, tooLate)));
}

// Zeroes the panel's columns of the scores in the rows of `whole` that are outside `kept`.
inline void zeroOutside(const Range& whole, const Range& kept, float* panelScores) {
  const auto zeroRows = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t key = begin; key < end; ++key) {
      std::memset(panelScores + key * queryTile, 0, static_cast<std::size_t>(panelWidth) * sizeof(float));
    }
  };
  if (kept.empty()) return zeroRows(whole.begin, whole.end);
  zeroRows(whole.begin, kept.begin);
  zeroRows(kept.end, whole.end);
}

}  // namespace tandem::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
