// Rows of quantised matrices as numbers again: tables looked up by token, and whole matrices.
#include <algorithm>
#include <type_traits>

#include "common/base/error.h"
#include "kernels/cpu/float_rows.h"
#include "kernels/cpu/operators.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/storage.h"

namespace tandem::kernels::cpu {

namespace {

// The four codes of a word that belong to one row, words of a row lying apart by those of seven others.
void int8Row(const QuantisedMatrix& matrix, std::int64_t row, float* to) {
  const std::int64_t block = row / quantisedBlock, lane = row % quantisedBlock;
  const std::int64_t blockBytes = quantisedBlock * codeBytesOfRow(matrix.format, matrix.inputs);
  const auto* codes = elements<std::int8_t>(matrix.codes) + block * blockBytes + lane * 4;
  const float scale = elements<float>(matrix.scales)[row];
  for (std::int64_t i = 0; i < matrix.inputs; ++i) {
    to[i] = static_cast<float>(codes[i / 4 * 4 * quantisedBlock + i % 4]) * scale;
  }
}

void int4Row(const QuantisedMatrix& matrix, std::int64_t row, float* to) {
  const std::int64_t block = row / quantisedBlock, lane = row % quantisedBlock;
  const std::int64_t groups = quantisedGroups(matrix.inputs), half = quantisedGroup / 2;
  const auto* codes = elements<std::uint8_t>(matrix.codes) +
                      block * quantisedBlock * codeBytesOfRow(matrix.format, matrix.inputs) + lane * 4;
  const auto* scales = elements<base::Float16>(matrix.scales) + block * groups * 2 * quantisedBlock + lane;
  for (std::int64_t group = 0; group < groups; ++group) {
    const auto scale = static_cast<float>(scales[0]), minimum = static_cast<float>(scales[quantisedBlock]);
    const std::int64_t count = std::min(quantisedGroup, matrix.inputs - group * quantisedGroup);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint8_t both = codes[i % half / 4 * 4 * quantisedBlock + i % 4];
      to[group * quantisedGroup + i] = static_cast<float>(i < half ? both & 15 : both >> 4) * scale + minimum;
    }
    codes += quantisedBlock * half;
    scales += 2 * quantisedBlock;
  }
}

void rowOf(const QuantisedMatrix& matrix, std::int64_t row, float* to) {
  if (matrix.format == QuantisedFormat::int8) {
    int8Row(matrix, row, to);
  } else {
    int4Row(matrix, row, to);
  }
}

// Writes rows as floats where they are wanted as such, else by way of the scratch. `fill(row, to)` writes one.
template <class Fill>
void writeRows(const TensorView& output, Context& context, const Fill& fill) {
  const std::int64_t rows = output.shape.rows(), width = output.shape.last();
  const bool direct = output.type == DType::f32;
  const std::int64_t panel = direct ? rows : convertibleRows(rows, width);
  for (std::int64_t first = 0; first < rows; first += panel) {
    const std::int64_t count = std::min(panel, rows - first);
    float* floats = direct ? elements<float>(output) : scratchFloats(0, count * width, context);
    parallelBlocks(context.threads, count, 1, worthwhileRows(4 * width),
                   [&](std::int64_t begin, std::int64_t end, int) {
                     for (std::int64_t row = begin; row < end; ++row) fill(first + row, floats + row * width);
                   });
    if (direct) continue;
    auto* to = static_cast<std::byte*>(output.data) + first * width * base::byteSize(output.type);
    run(Cast{ConstTensorView(floats, DType::f32, {count, width}), TensorView(to, output.type, {count, width})},
        context);
  }
}

void checkIndices(const ConstTensorView& indices, std::int64_t limit, const char* what) {
  const auto* values = elements<std::int32_t>(indices);
  const bool inside = std::all_of(values, values + indices.shape.count(),
                                  [limit](std::int32_t index) { return index >= 0 && index < limit; });
  TANDEM_ASSERT(inside, std::string(what) + " outside of its table");
}

}  // namespace

void run(const QuantisedEmbedding& call, Context& context) {
  const std::int64_t width = call.weight.inputs;
  checkIndices(call.tokens, call.weight.outputs, "a token is");
  if (call.positionWeight) checkIndices(call.positions, call.positionWeight.shape[0], "a position is");
  writeRows(call.output, context, [&](std::int64_t row, float* to) {
    rowOf(call.weight, elements<std::int32_t>(call.tokens)[row], to);
    if (!call.positionWeight) return;
    const std::int64_t position = elements<std::int32_t>(call.positions)[row];
    withElement(call.positionWeight.type, [&](auto* type) {
      using Element = std::remove_pointer_t<decltype(type)>;
      const Element* from = elements<Element>(call.positionWeight) + position * width;
      for (std::int64_t i = 0; i < width; ++i) to[i] += static_cast<float>(from[i]);
    });
  });
}

void run(const Dequantise& call, Context& context) {
  writeRows(call.output, context, [&](std::int64_t row, float* to) { rowOf(call.matrix, row, to); });
}

}  // namespace tandem::kernels::cpu
