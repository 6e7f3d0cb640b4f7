#include "kernels/cpu/float_rows.h"

#include <algorithm>

#include "kernels/cpu/storage.h"

namespace tandem::kernels::cpu {

float* scratchFloats(int slot, std::int64_t count, Context& context) {
  return reinterpret_cast<float*>(context.scratch.get(slot, count * static_cast<std::int64_t>(sizeof(float))));
}

const float* floatRows(const ConstTensorView& matrix, std::int64_t begin, std::int64_t count, int slot,
                       Context& context) {
  const std::int64_t width = matrix.shape.last();
  if (matrix.type == DType::f32) return elements<float>(matrix) + begin * width;
  float* converted = scratchFloats(slot, count * width, context);
  const Shape shape{count, width};
  run(Cast{ConstTensorView(static_cast<const std::byte*>(matrix.data) + begin * width * base::byteSize(matrix.type),
                           matrix.type, shape),
           TensorView(converted, DType::f32, shape)},
      context);
  return converted;
}

std::int64_t convertibleRows(std::int64_t rows, std::int64_t width) {
  constexpr std::int64_t floats = std::int64_t{4} << 20;
  return std::clamp<std::int64_t>(floats / std::max<std::int64_t>(1, width), 1, std::max<std::int64_t>(1, rows));
}

}  // namespace tandem::kernels::cpu
