// Linear layers: products of cuBLASLt with what it has an epilogue for, and for the rest one more pass over the result:
// activations other than the tanh form of GELU, and operands that its fused kernels do not take.
#include "kernels/cuda/activation_function.h"
#include "kernels/cuda/bias_gradient.h"
#include "kernels/cuda/flat.h"
#include "kernels/cuda/fp8_linear.h"
#include "kernels/cuda/matrix_product.h"
#include "kernels/cuda/operators.h"

namespace tandem::kernels::cuda {

namespace {

// Scratch slots of this file; none is used by an operator that is called from here.
constexpr int productSlot = 1, sumsSlot = 2;

// gradInput += product * activation'(preActivation)
template <class T, ActivationKind kind>
struct AddSlopes {
  static constexpr int vectors = 2;
  const T *product, *preActivation;
  T* gradInput;
  template <int N>
  struct Values {
    Packed<N, T> product, x, sum;
  };
  template <int N>
  __device__ void read(std::int64_t at, Values<N>& values) const {
    values.product.load(product + at);
    values.x.load(preActivation + at);
    values.sum.load(gradInput + at);
  }
  template <int N>
  __device__ void write(std::int64_t at, const Values<N>& values) const {
    float gradient[N], x[N], sum[N];
    values.product.unpack(gradient);
    values.x.unpack(x);
    values.sum.unpack(sum);
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] += gradient[i] * slope<kind>(x[i]);
    store(gradInput + at, sum);
  }
};

void addSlopes(const LinearBackwardInput& call, const ConstTensorView& product, Context& context) {
  withStorage(call.gradInput.type, "LinearBackwardInput", [&](auto element) {
    using T = decltype(element);
    constexpr int n = vectorElements<T>;
    withActivation(call.activation, [&](auto kind) {
      runFlat<n>(
          AddSlopes<T, kind()>{elements<T>(product), elements<T>(call.preActivation), elements<T>(call.gradInput)},
          call.gradInput.shape.count(), takeVectors<n>(product, call.preActivation, call.gradInput),
          "LinearBackwardInput", context.stream);
    });
  });
}

// The product and its activation in one, if cuBLASLt does that.
bool runFused(const Linear& call, Product product, Context& context) {
  if (product.left.fp8 || call.activation != ActivationKind::geluTanh) return false;
  product.epilogue = call.bias ? Epilogue::geluBias : Epilogue::gelu;
  if (call.preActivation) product.auxiliary = matrixOf(call.preActivation);
  if (!context.matrixProduct->offers(product)) return false;
  context.matrixProduct->run(product, context.stream, context.scratch);
  return true;
}

}  // namespace

void run(const Linear& call, Context& context) {
  if (call.output.shape.count() == 0) return;
  Product product{.left = matrixOf(call.input),
                  .right = matrixOf(call.weight),
                  .transposeRight = true,
                  .target = matrixOf(call.output),
                  .vector = call.bias.data};
  takeFp8Operands(call, product, context);
  if (runFused(call, product, context)) return;
  // Without room for it the argument of the activation lies where its value goes.
  const TensorView argument = call.preActivation ? call.preActivation : call.output;
  product.target = matrixOf(argument);
  product.epilogue = call.bias ? Epilogue::bias : Epilogue::none;
  context.matrixProduct->run(product, context.stream, context.scratch);
  if (call.activation != ActivationKind::none || argument.data != call.output.data) {
    run(Activation{call.activation, argument, call.output}, context);
  }
}

void run(const LinearBackwardInput& call, Context& context) {
  if (call.gradInput.shape.count() == 0) return;
  MatrixProduct& products = *context.matrixProduct;
  Product product{
      .left = matrixOf(call.gradOutput), .right = matrixOf(call.weight), .target = matrixOf(call.gradInput)};
  takeFp8Operands(call, product, context);
  if (call.activation == ActivationKind::none) {
    if (call.accumulate) accumulate(product);
    return products.run(product, context.stream, context.scratch);
  }
  if (call.accumulate) {
    TensorView apart = call.gradInput;
    apart.data = context.scratch.get(productSlot, call.gradInput.shape.count() * base::byteSize(call.gradInput.type));
    product.target = matrixOf(apart);
    products.run(product, context.stream, context.scratch);
    return addSlopes(call, apart, context);
  }
  if (call.activation == ActivationKind::geluTanh && !product.left.fp8) {
    Product fused = product;
    fused.epilogue = Epilogue::geluBackward;
    fused.auxiliary = matrixOf(call.preActivation);
    if (products.offers(fused)) return products.run(fused, context.stream, context.scratch);
  }
  products.run(product, context.stream, context.scratch);
  run(ActivationBackward{call.activation, call.gradInput, call.preActivation, call.gradInput}, context);
}

void run(const LinearBackwardWeight& call, Context& context) {
  MatrixProduct& products = *context.matrixProduct;
  Product product{.left = matrixOf(call.gradOutput),
                  .transposeLeft = true,
                  .right = matrixOf(call.input),
                  .target = matrixOf(call.gradWeight)};
  takeFp8Operands(call, product, context);
  if (call.accumulate) accumulate(product);
  if (!call.gradBias) return products.run(product, context.stream, context.scratch);

  // The product reads the rows of gradOutput anyway and can sum them on the way; it cannot add to older sums.
  TensorView sums = call.gradBias;
  if (call.accumulate) sums.data = context.scratch.get<float>(sumsSlot, call.gradBias.shape.count());
  Product fused = product;
  fused.epilogue = Epilogue::leftSums;
  fused.vector = sums.data;
  // An 8-bit operand would give sums of what was rounded.
  if (!product.left.fp8 && products.offers(fused)) {
    products.run(fused, context.stream, context.scratch);
    if (call.accumulate) run(Axpy{sums, call.gradBias, 1.0f}, context);
    return;
  }
  products.run(product, context.stream, context.scratch);
  biasGradient(call.gradOutput, call.gradBias, call.accumulate, sumsSlot, context);
}

}  // namespace tandem::kernels::cuda
