#pragma once
// Quantised matrices: what their codes stand for, and how they lie in memory.
//
// A row of a matrix [outputs, inputs] is cut into groups of 32 inputs; the last group may be shorter and is then filled
// up with codes 0, which multiply inputs that are not there.
//   int8: value = code * scale; code in [-127, 127], one float32 scale a row (output channel).
//   int4: value = code * scale + minimum; code in [0, 15], a float16 scale and minimum a group, as GGUF's Q4_1 has it.
//
// A row's codes are bytes: int8 one an input; int4 16 a group, byte i holding input i of the group in its lower half
// and input i + 16 in its upper. That is how files have them. In memory eight rows (a block) lie interleaved word by
// word of four bytes, so that one vector of 32 bytes holds the same inputs of eight rows: sums of products then stay in
// the lane of their row. Rows beyond the last are zeros.
//   codes   uint8 [blocks, words of a row, 8, 4], from a multiple of 16 bytes on
//   scales  int8: float32 [blocks, 8]; int4: float16 [blocks, groups, 2, 8], scales then minimums

#include <cstdint>

#include "kernels/tensor_view.h"

namespace tandem::kernels {

enum class QuantisedFormat : std::uint8_t { int8, int4 };

constexpr std::int64_t quantisedGroup = 32;  // inputs that share a scale, of int4 weights and of quantised activations
constexpr std::int64_t quantisedBlock = 8;   // rows that lie interleaved

constexpr std::int64_t quantisedGroups(std::int64_t inputs) { return (inputs + quantisedGroup - 1) / quantisedGroup; }
constexpr std::int64_t quantisedBlocks(std::int64_t outputs) { return (outputs + quantisedBlock - 1) / quantisedBlock; }
constexpr std::int64_t codeBytesOfGroup(QuantisedFormat format) {
  return format == QuantisedFormat::int8 ? quantisedGroup : quantisedGroup / 2;
}
// Bytes of a row's codes, padding included.
constexpr std::int64_t codeBytesOfRow(QuantisedFormat format, std::int64_t inputs) {
  return quantisedGroups(inputs) * codeBytesOfGroup(format);
}

// Types and shapes of the two tensors of a matrix in memory.
inline Shape codesInMemory(QuantisedFormat format, std::int64_t outputs, std::int64_t inputs) {
  return {quantisedBlocks(outputs), codeBytesOfRow(format, inputs) / 4, quantisedBlock, 4};
}
inline Shape scalesInMemory(QuantisedFormat format, std::int64_t outputs, std::int64_t inputs) {
  if (format == QuantisedFormat::int8) return {quantisedBlocks(outputs), quantisedBlock};
  return {quantisedBlocks(outputs), quantisedGroups(inputs), 2, quantisedBlock};
}
constexpr DType scalesType(QuantisedFormat format) { return format == QuantisedFormat::int8 ? DType::f32 : DType::f16; }

// A matrix as operators take it.
struct QuantisedMatrix {
  QuantisedFormat format = QuantisedFormat::int8;
  std::int64_t outputs = 0, inputs = 0;
  ConstTensorView codes;   // uint8
  ConstTensorView scales;  // scalesType(format)
};

}  // namespace tandem::kernels
