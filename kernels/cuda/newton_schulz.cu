// Orthogonalisation of a matrix by Newton-Schulz iterations, all of it matrix products. The smaller side makes the
// smaller Gram matrix, from the left for a wide matrix and from the right for a tall one, so nothing is transposed. The
// norm stays on the device.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/flat.h"
#include "kernels/cuda/matrix_product.h"
#include "kernels/cuda/operators.h"

namespace tandem::kernels::cuda {

namespace {

constexpr int slot = 1;  // SquaredNorm, which is called from here, uses another
constexpr float factorA = 3.4445f, factorB = -4.7750f, factorC = 2.0315f;

// output = input / sqrt(squares); a matrix of zeros has no direction and stays zero.
struct Normalize {
  static constexpr int vectors = 2;
  const float* input;
  const double* squares;
  float* output;
  template <int N>
  struct Values {
    Packed<N, float> x;
  };
  template <int N>
  __device__ void read(std::int64_t at, Values<N>& values) const {
    values.x.load(input + at);
  }
  template <int N>
  __device__ void write(std::int64_t at, const Values<N>& values) const {
    const float factor = *squares == 0 ? 0.0f : static_cast<float>(1 / sqrt(*squares));
    float x[N];
    values.x.unpack(x);
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] *= factor;
    store(output + at, x);
  }
};

void normalize(const NewtonSchulz& call, double* squares, const TensorView& output, Context& context) {
  run(SquaredNorm{call.matrix, TensorView(squares, DType::f64, Shape{1})}, context);
  constexpr int n = vectorElements<float>;
  runFlat<n>(Normalize{elements<float>(call.matrix), squares, elements<float>(output)}, output.shape.count(),
             takeVectors<n>(call.matrix, output), "NewtonSchulz", context.stream);
}

// to = factorA X + S X with S = factorB G + factorC G G and G = X X^T; for a tall X from the other side.
void iterate(const Matrix& x, const Matrix& gram, const Matrix& square, const Matrix& to, Context& context) {
  MatrixProduct& products = *context.matrixProduct;
  const bool tall = x.rows > x.columns;
  products.run(Product{.left = x, .transposeLeft = tall, .right = x, .transposeRight = !tall, .target = gram},
               context.stream, context.scratch);
  products.run(
      Product{
          .left = gram, .right = gram, .target = square, .factor = factorC, .addend = gram, .addendFactor = factorB},
      context.stream, context.scratch);
  products.run(
      Product{
          .left = tall ? x : square, .right = tall ? square : x, .target = to, .addend = x, .addendFactor = factorA},
      context.stream, context.scratch);
}

}  // namespace

void run(const NewtonSchulz& call, Context& context) {
  const Shape& shape = call.matrix.shape;
  const std::int64_t count = shape.count(), small = std::min(shape[0], shape[1]);
  if (count == 0) return;
  // One slot: the norm, two Gram matrices and a second matrix to go to and fro with the output.
  constexpr std::int64_t group = 64;  // floats; keeps all parts at multiples of 256 bytes
  const std::int64_t gramFloats = ceilDivide(small * small, group) * group;
  float* scratch = context.scratch.get<float>(slot, group + 2 * gramFloats + count);
  const Matrix gram{scratch + group, DType::f32, small, small, small};
  const Matrix square{scratch + group + gramFloats, DType::f32, small, small, small};
  TensorView current(scratch + group + 2 * gramFloats, DType::f32, shape), next = call.output;
  if (call.iterations % 2 == 0) std::swap(current, next);  // the last iteration ends in the output
  normalize(call, reinterpret_cast<double*>(scratch), current, context);
  for (std::int64_t iteration = 0; iteration < call.iterations; ++iteration) {
    iterate(matrixOf(current), gram, square, matrixOf(next), context);
    std::swap(current, next);
  }
}

}  // namespace tandem::kernels::cuda
