#pragma once
// Matrix products by cuBLASLt, whose only caller this is: row-major operands, fused epilogues, the algorithm for a
// shape chosen once and kept.

#include <memory>
#include <optional>
#include <string>

#include "kernels/cuda/device.h"
#include "kernels/fp8_format.h"
#include "kernels/tensor_view.h"

namespace tandem::kernels::cuda {

// A row-major matrix: rows x columns, `stride` elements from row to row.
struct Matrix {
  const void* data = nullptr;
  DType type = DType::f32;
  std::int64_t rows = 0, columns = 0, stride = 0;
  std::optional<fp8::Format> fp8 = {};  // 8-bit floats instead of `type`
  const float* factor = nullptr;        // in the device's memory: what their values are multiplied by; with fp8
};
// Of a tensor whose last axis makes the rows.
inline Matrix matrixOf(const ConstTensorView& view) {
  return {.data = view.data,
          .type = view.type,
          .rows = view.shape.rows(),
          .columns = view.shape.last(),
          .stride = view.shape.last()};
}

// What happens to a sum before it is stored.
enum class Epilogue {
  none,
  bias,          // + vector[column]
  gelu,          // tanh form; the argument goes to `auxiliary` if that is given
  geluBias,      // tanh form of (sum + vector[column]); the argument goes to `auxiliary` if that is given
  geluBackward,  // times the derivative of the tanh form at `auxiliary`
  leftSums,      // nothing, but vector[row] = sum over the columns of op(left): a bias gradient beside a weight's
};

// target = epilogue(factor * op(left) op(right) + addendFactor * addend), sums in float32. The operands have one
// storage type: float32, bfloat16 or float16; the target has it too, or float32. Or both operands are 8-bit floats,
// rows by transposed rows (only `right` is transposed), at least one of them e4m3, extents multiples of 16; then the
// target is of any of these types, and its epilogue none or (not float32) bias.
struct Product {
  Matrix left;
  bool transposeLeft = false;
  Matrix right;
  bool transposeRight = false;
  Matrix target;  // written
  float factor = 1;
  Matrix addend = {};  // as the target, which it may be; optional, not with a form of GELU
  float addendFactor = 0;
  Epilogue epilogue = Epilogue::none;
  const void* vector = nullptr;  // of the target's type; written by leftSums
  Matrix auxiliary = {};         // as the target; optional except for geluBackward
  bool fastSums = false;         // of 8-bit floats: sums may lose some bits, as is usual in forward passes
};
// target += instead of target =.
inline void accumulate(Product& product) {
  product.addend = product.target;
  product.addendFactor = 1;
}

class MatrixProduct {
 public:
  virtual ~MatrixProduct() = default;
  virtual std::string name() const = 0;  // "cuBLASLt 13.1.0"
  // Whether run() will do this one: operands and epilogue as they are, with these addresses. The epilogues other than
  // none ask for more than their product alone does (auxiliary: rows that begin at multiples of 16 bytes).
  virtual bool offers(const Product& product) = 0;
  // Enqueues the product; cuBLASLt's workspace comes from the stream's scratch.
  // Throws Error of kind device, naming shape and types, for a product that cuBLASLt has no algorithm for.
  virtual void run(const Product& product, cudaStream_t stream, Scratch& scratch) = 0;
};

// `tf32` lets float32 products round their operands to 10 bits of mantissa. Where cuBLASLt names several algorithms,
// the first product of a shape runs a few of them by turns and keeps the fastest; so two runs of a program may take
// different ones, whose sums differ in rounding.
struct ProductOptions {
  bool tf32 = false;  // multiply float32 with 10 bits of mantissa
  // Times several algorithms when a shape is met first, and keeps the fastest. Another run may then take others and
  // round differently, so that it does not give the same bits.
  bool tune = false;
};
std::unique_ptr<MatrixProduct> makeMatrixProduct(const ProductOptions& options);

}  // namespace tandem::kernels::cuda
