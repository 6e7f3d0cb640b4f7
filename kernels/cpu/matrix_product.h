#pragma once
// The seam to the matrix library: one single-precision product, row-major, performed by oneDNN or OpenBLAS.
//
// Which one is decided by processor, not by a measurement: two runs of one job must compute the same bits.

#include <cstdint>
#include <memory>
#include <string>

namespace tandem::kernels::cpu {

// C[m, n] = alpha * op(A) op(B) + beta * C, where op(A) is [m, k] and op(B) is [k, n]; leading dimensions in elements.
// With beta = 0 what C held does not matter, not even NaN. Any extent may be zero.
struct ProductShape {
  bool transposeA = false, transposeB = false;
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t leadingA = 0, leadingB = 0, leadingC = 0;
  float alpha = 1, beta = 0;
};

class MatrixProduct {
 public:
  virtual ~MatrixProduct() = default;
  virtual std::string name() const = 0;
  // With all threads of the backend.
  virtual void multiply(const ProductShape& shape, const float* a, const float* b, float* c) = 0;
};

struct MatrixLibrary {
  std::string name;    // "onednn" or "openblas"
  std::string reason;  // why this one
};

// Which library stands behind "auto", "onednn" or "openblas". Kind usage for one that is not in this build.
MatrixLibrary chooseMatrixLibrary(const std::string& library);

std::unique_ptr<MatrixProduct> makeMatrixProduct(const std::string& library, int threads);

}  // namespace tandem::kernels::cpu
