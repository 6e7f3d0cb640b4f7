#pragma once
// Quantising matrices of a model and back, row by row, on the host: the same bytes on every machine.
//
// kernels/quantised.h says what the formats are. In a file, a matrix NAME [outputs, inputs] that is held quantised is
// replaced by two datasets, whose types tell the format:
//   NAME.codes   int8:  int8 [outputs, inputs]
//                int4:  uint8 [outputs, 16 * groups], byte i of a group: input i below, input i + 16 above
//   NAME.scales  int8:  float32 [outputs]
//                int4:  float16 [outputs, groups, 2]: scale, minimum
// with groups = ceil(inputs / 32). int4 is Q4_1 of GGUF with the group's scale and minimum apart from its codes, so
// that either turns into the other without loss.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/dtype.h"
#include "common/base/shape.h"
#include "kernels/quantised.h"

namespace tandem::checkpoint {

using kernels::QuantisedFormat;

// "int8" or "int4"; throws Error of kind usage for another text.
QuantisedFormat parseQuantisedFormat(const std::string& text);
const char* name(QuantisedFormat format);

// The datasets of a quantised matrix.
std::string codesName(const std::string& matrix);
std::string scalesName(const std::string& matrix);
struct QuantisedDatasets {
  base::DType codesType = base::DType::i8, scalesType = base::DType::f32;
  base::Shape codes, scales;
};
QuantisedDatasets quantisedDatasets(QuantisedFormat format, std::int64_t outputs, std::int64_t inputs);

// What a parameter of a model becomes when its model is quantised to `format`; nothing: it stays as it is. Matrices of
// linear layers get that format; the embedding table and the head, on which the quality depends most, int8 at least;
// norms, biases and positions stay.
std::optional<QuantisedFormat> formatOfParameter(const std::string& parameter, const base::Shape& shape,
                                                 QuantisedFormat format);

// The same of the frozen weights of a model beside adapters (QLoRA): only the matrices of its layers.
std::optional<QuantisedFormat> formatOfFrozen(const std::string& parameter, const base::Shape& shape,
                                              QuantisedFormat format);

// Where rows come from, for messages.
struct RowsPlace {
  std::string matrix;
  std::int64_t firstRow = 0;
};

// Rows of a matrix as the file has them; codes of int8 are the bytes of signed numbers.
struct QuantisedRows {
  std::vector<std::byte> codes;
  std::vector<std::byte> scales;
};

// Quantises whole rows of `inputs` values. int8: the error of a value is at most half a scale. int4: of several scales
// and minimums of a group those of the least squared error are taken; the full range in fifteen steps is among them.
// Throws Error of kind badData, naming matrix, row and column, for a value that is no finite number, and for a group
// whose scale or minimum is too large for float16.
QuantisedRows quantiseRows(QuantisedFormat format, std::span<const float> values, std::int64_t inputs,
                           const RowsPlace& place);

// The values that the rows stand for, into target [rows, inputs]. Throws Error of kind badData, naming matrix and row,
// for a scale or minimum that is no finite number.
void dequantiseRows(QuantisedFormat format, const QuantisedRows& rows, std::int64_t inputs, std::span<float> target,
                    const RowsPlace& place);

// Columns [begin, begin + count) of the rows, as a file would have them. Of int4, whole groups, or groups to the row's
// end.
QuantisedRows cutColumns(QuantisedFormat format, const QuantisedRows& rows, std::int64_t inputs, std::int64_t begin,
                         std::int64_t count);

// The same rows as kernels read them (kernels/quantised.h): from a multiple of eight rows, or to the matrix's end.
// Throws like dequantiseRows.
QuantisedRows packRows(QuantisedFormat format, const QuantisedRows& rows, std::int64_t inputs, const RowsPlace& place);

}  // namespace tandem::checkpoint
