// Orthogonalisation of a matrix by Newton-Schulz iterations, all of it matrix products.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/float_rows.h"
#include "kernels/cpu/matrix_product.h"
#include "kernels/cpu/operators.h"
#include "kernels/cpu/storage.h"

namespace tandem::kernels::cpu {

namespace {

constexpr int currentSlot = 1, nextSlot = 2, gramSlot = 3, squareSlot = 4, normSlot = 5;
constexpr float factorA = 3.4445f, factorB = -4.7750f, factorC = 2.0315f;

// to[j, i] = factor * from[i, j], in tiles so that both sides stay in the cache.
void transposeScaled(const float* from, std::int64_t rows, std::int64_t columns, float factor, float* to) {
  constexpr std::int64_t tile = 32;
  for (std::int64_t top = 0; top < rows; top += tile) {
    for (std::int64_t left = 0; left < columns; left += tile) {
      for (std::int64_t i = top; i < std::min(rows, top + tile); ++i) {
        for (std::int64_t j = left; j < std::min(columns, left + tile); ++j) {
          to[j * rows + i] = factor * from[i * columns + j];
        }
      }
    }
  }
}

// next = a X + (b A + c A A) X with A = X X^T; X is [m, n] with m <= n.
void iterate(std::int64_t m, std::int64_t n, const float* x, float* next, Context& context) {
  float* gram = scratchFloats(gramSlot, m * m, context);
  float* square = scratchFloats(squareSlot, m * m, context);
  MatrixProduct& product = *context.matrixProduct;
  product.multiply(
      ProductShape{.transposeB = true, .m = m, .n = m, .k = n, .leadingA = n, .leadingB = n, .leadingC = m}, x, x,
      gram);
  std::copy(gram, gram + m * m, square);
  product.multiply(
      ProductShape{
          .m = m, .n = m, .k = m, .leadingA = m, .leadingB = m, .leadingC = m, .alpha = factorC, .beta = factorB},
      gram, gram, square);
  std::copy(x, x + m * n, next);
  product.multiply(ProductShape{.m = m, .n = n, .k = m, .leadingA = m, .leadingB = n, .leadingC = n, .beta = factorA},
                   square, x, next);
}

}  // namespace

void run(const NewtonSchulz& call, Context& context) {
  const std::int64_t rows = call.matrix.shape[0], columns = call.matrix.shape[1], count = rows * columns;
  if (count == 0) return;
  auto* squared = reinterpret_cast<double*>(context.scratch.get(normSlot, sizeof(double)));
  run(SquaredNorm{call.matrix, TensorView(squared, DType::f64, Shape{1})}, context);
  // A matrix of zeros has no direction; it stays zero.
  const float factor = *squared == 0 ? 0.0f : static_cast<float>(1.0 / std::sqrt(*squared));

  const bool tall = rows > columns;  // the smaller side makes the smaller Gram matrix
  const std::int64_t m = std::min(rows, columns), n = std::max(rows, columns);
  float* current = scratchFloats(currentSlot, count, context);
  float* next = scratchFloats(nextSlot, count, context);
  const float* matrix = elements<float>(call.matrix);
  if (tall) {
    transposeScaled(matrix, rows, columns, factor, current);
  } else {
    std::transform(matrix, matrix + count, current, [factor](float value) { return factor * value; });
  }
  for (std::int64_t iteration = 0; iteration < call.iterations; ++iteration) {
    iterate(m, n, current, next, context);
    std::swap(current, next);
  }
  float* output = elements<float>(call.output);
  if (tall) {
    transposeScaled(current, columns, rows, 1.0f, output);
  } else {
    std::copy(current, current + count, output);
  }
}

}  // namespace tandem::kernels::cpu
