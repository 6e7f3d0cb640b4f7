// Products with quantised weights: activations are rounded to int8 on the fly, in groups of 32 with a scale of their
// own, and multiplied as integers; the scales of both sides come in once a group.
//
// Threads share the blocks of eight outputs. A panel of rows of the activations stays in the first cache while the
// blocks pass, and up to four of its rows share the unpacking of a group of codes.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/float_rows.h"
#include "kernels/cpu/linear_epilogue.h"
#include "kernels/cpu/operators.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/cpu/storage.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/quantised_linear.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd.h"
//
#include "kernels/cpu/byte_products.h"

#ifndef TANDEM_KERNELS_CPU_QUANTISED_ROWS
#define TANDEM_KERNELS_CPU_QUANTISED_ROWS
namespace tandem::kernels::cpu {

// Rows of activations as the products take them. A value is code * scale; sums are of the values before rounding.
struct QuantisedActivations {
  std::int64_t rows = 0, inputs = 0, groups = 0;
  std::int8_t* codes = nullptr;  // [rows, groups * 32], zeros behind the last input
  float* scales = nullptr;       // [rows, groups]
  float* sums = nullptr;         // [rows, groups]
};

// Blocks [begin, end) of the outputs.
struct QuantisedProduct {
  const QuantisedMatrix& weight;
  const QuantisedActivations& input;
  float* product;  // [rows, outputs]
};

}  // namespace tandem::kernels::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace tandem::kernels::cpu::HWY_NAMESPACE {

// --- activations -----------------------------------------------------------------------------------------------------

using GroupFloats = hn::CappedTag<float, 8>;
using GroupIntegers = hn::RebindToSigned<GroupFloats>;
using GroupBytes = hn::Rebind<std::int8_t, GroupFloats>;

// One group of 32. A value that is no number makes the scale none, and so every output of its row.
HWY_INLINE void quantiseGroup(const float* values, std::int8_t* codes, float& scale, float& sum) {
  const GroupFloats floats;
  const auto step = static_cast<std::int64_t>(hn::Lanes(floats));
  auto largest = hn::Zero(floats), total = hn::Zero(floats), poison = hn::Zero(floats);
  for (std::int64_t i = 0; i < quantisedGroup; i += step) {
    const auto value = hn::LoadU(floats, values + i);
    largest = hn::Max(largest, hn::Abs(value));
    total = hn::Add(total, value);
    poison = hn::MulAdd(value, hn::Zero(floats), poison);  // 0, or not a number
  }
  const float most = hn::GetLane(hn::MaxOfLanes(floats, largest));
  sum = hn::GetLane(hn::SumOfLanes(floats, total));
  scale = most / 127 + hn::GetLane(hn::SumOfLanes(floats, poison));
  const auto inverse = hn::Set(floats, most > 0 ? 127 / most : 0.0f);
  const auto bound = hn::Set(floats, 127.0f);
  for (std::int64_t i = 0; i < quantisedGroup; i += step) {
    // Bounded, since the inverse of the smallest numbers is infinite.
    const auto code = hn::Clamp(hn::Mul(hn::LoadU(floats, values + i), inverse), hn::Neg(bound), bound);
    hn::StoreU(hn::DemoteTo(GroupBytes(), hn::NearestInt(code)), GroupBytes(), codes + i);
  }
}

void quantiseRows(const float* values, const QuantisedActivations& to, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    const float* from = values + row * to.inputs;
    for (std::int64_t group = 0; group < to.groups; ++group) {
      const std::int64_t place = row * to.groups + group, first = group * quantisedGroup;
      HWY_ALIGN float padded[quantisedGroup] = {};
      const float* whole = from + first;
      if (first + quantisedGroup > to.inputs) {
        std::copy(whole, from + to.inputs, padded);
        whole = padded;
      }
      quantiseGroup(whole, to.codes + place * quantisedGroup, to.scales[place], to.sums[place]);
    }
  }
}

// --- products --------------------------------------------------------------------------------------------------------

// sums[r] = the eight outputs of a block for row r, from `row` on.
template <int rows>
HWY_INLINE void blockOfInt4(const QuantisedProduct& call, std::int64_t block, std::int64_t row, BlockFloats* sums) {
  const std::int64_t groups = call.input.groups, pitch = groups * quantisedGroup;
  const std::uint8_t* codes =
      elements<std::uint8_t>(call.weight.codes) + block * quantisedBlock * codeBytesOfRow(QuantisedFormat::int4, pitch);
  const std::uint16_t* scales = elements<std::uint16_t>(call.weight.scales) + block * groups * 2 * quantisedBlock;
  const std::int8_t* activations = call.input.codes + row * pitch;
  for (std::int64_t group = 0; group < groups; ++group) {
    BlockFloats products[static_cast<std::size_t>(rows)];
    groupProducts4<rows>(codes, activations, pitch, products);
    const BlockFloats scale = loadHalves(scales), minimum = loadHalves(scales + quantisedBlock);
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      const std::int64_t place = (row + r) * groups + group;
      sums[r] = plusTimes(sums[r], products[r], times(scale, call.input.scales[place]));
      sums[r] = plusTimes(sums[r], minimum, call.input.sums[place]);
    }
    codes += quantisedBlock * codeBytesOfGroup(QuantisedFormat::int4);
    scales += 2 * quantisedBlock;
    activations += quantisedGroup;
  }
}

template <int rows>
HWY_INLINE void blockOfInt8(const QuantisedProduct& call, std::int64_t block, std::int64_t row, BlockFloats* sums) {
  const std::int64_t groups = call.input.groups, pitch = groups * quantisedGroup;
  const std::uint8_t* codes = elements<std::uint8_t>(call.weight.codes) + block * quantisedBlock * pitch;
  const std::int8_t* activations = call.input.codes + row * pitch;
  for (std::int64_t group = 0; group < groups; ++group) {
    BlockFloats products[static_cast<std::size_t>(rows)];
    groupProducts8<rows>(codes, activations, pitch, products);
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      sums[r] = plusTimes(sums[r], products[r], call.input.scales[(row + r) * groups + group]);
    }
    codes += quantisedBlock * quantisedGroup;
    activations += quantisedGroup;
  }
  const BlockFloats scale = loadFloats(elements<float>(call.weight.scales) + block * quantisedBlock);
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) sums[r] = times(sums[r], scale);
}

template <QuantisedFormat format, int rows>
void blockOfRows(const QuantisedProduct& call, std::int64_t block, std::int64_t row) {
  BlockFloats sums[static_cast<std::size_t>(rows)];
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) sums[r] = zeroFloats();
  if constexpr (format == QuantisedFormat::int4) {
    blockOfInt4<rows>(call, block, row, sums);
  } else {
    blockOfInt8<rows>(call, block, row, sums);
  }
  const std::int64_t outputs = call.weight.outputs, first = block * quantisedBlock;
  const std::int64_t count = std::min(quantisedBlock, outputs - first);
  for (int r = 0; r < rows; ++r) {
    float* to = call.product + (row + r) * outputs + first;
    if (count == quantisedBlock) {
      storeFloats(sums[r], to);
    } else {
      float all[lanesOfBlock];
      storeFloats(sums[r], all);
      std::copy(all, all + count, to);
    }
  }
}

template <QuantisedFormat format>
void blocksOfPanel(const QuantisedProduct& call, std::int64_t firstRow, std::int64_t lastRow, std::int64_t begin,
                   std::int64_t end) {
  for (std::int64_t block = begin; block < end; ++block) {
    std::int64_t row = firstRow;
    for (; row + 4 <= lastRow; row += 4) blockOfRows<format, 4>(call, block, row);
    if (row + 3 == lastRow) blockOfRows<format, 3>(call, block, row);
    if (row + 2 == lastRow) blockOfRows<format, 2>(call, block, row);
    if (row + 1 == lastRow) blockOfRows<format, 1>(call, block, row);
  }
}

void quantisedProduct(const QuantisedProduct& call, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t panelBytes = 24 << 10;
  const std::int64_t rowBytes = call.input.groups * (quantisedGroup + 2 * static_cast<std::int64_t>(sizeof(float)));
  const std::int64_t panel = std::max<std::int64_t>(4, panelBytes / std::max<std::int64_t>(1, rowBytes) / 4 * 4);
  for (std::int64_t row = 0; row < call.input.rows; row += panel) {
    const std::int64_t last = std::min(call.input.rows, row + panel);
    if (call.weight.format == QuantisedFormat::int4) {
      blocksOfPanel<QuantisedFormat::int4>(call, row, last, begin, end);
    } else {
      blocksOfPanel<QuantisedFormat::int8>(call, row, last, begin, end);
    }
  }
}

}  // namespace tandem::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::kernels::cpu {

HWY_EXPORT(quantiseRows);
HWY_EXPORT(quantisedProduct);

namespace {

constexpr int inputSlot = 0, productSlot = 2, activationsSlot = 4, scalesSlot = 5;

QuantisedActivations quantise(const ConstTensorView& input, Context& context) {
  QuantisedActivations to{.rows = input.shape.rows(), .inputs = input.shape.last()};
  to.groups = quantisedGroups(to.inputs);
  const std::int64_t count = to.rows * to.groups;
  to.codes = reinterpret_cast<std::int8_t*>(context.scratch.get(activationsSlot, count * quantisedGroup));
  to.scales = scratchFloats(scalesSlot, 2 * count, context);
  to.sums = to.scales + count;
  const float* values = floatRows(input, 0, to.rows, inputSlot, context);
  parallelBlocks(context.threads, to.rows, 4, worthwhileRows(to.inputs),
                 [&](std::int64_t begin, std::int64_t end, int) {
                   HWY_DYNAMIC_DISPATCH(quantiseRows)(values, to, begin, end);
                 });
  return to;
}

}  // namespace

void run(const QuantisedLinear& call, Context& context) {
  const std::int64_t rows = call.input.shape.rows(), outputs = call.weight.outputs;
  if (rows == 0 || outputs == 0) return;
  const QuantisedActivations input = quantise(call.input, context);
  float* product = call.output.type == DType::f32 ? elements<float>(call.output)
                                                  : scratchFloats(productSlot, rows * outputs, context);
  // Bytes of a block are what a thread has to be worth.
  const std::int64_t blockBytes = quantisedBlock * codeBytesOfRow(call.weight.format, call.weight.inputs);
  parallelBlocks(context.threads, quantisedBlocks(outputs), 1, worthwhileRows(blockBytes * rows / 4),
                 [&](std::int64_t begin, std::int64_t end, int) {
                   HWY_DYNAMIC_DISPATCH(quantisedProduct)({call.weight, input, product}, begin, end);
                 });
  finishLinear({.bias = call.bias, .activation = call.activation, .preActivation = {}, .output = call.output}, product,
               context);
}

}  // namespace tandem::kernels::cpu
#endif
