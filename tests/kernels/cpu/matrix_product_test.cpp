#include "kernels/cpu/matrix_product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "common/base/error.h"
#include "tests/kernels/cpu/values.h"

namespace tandem::kernels::cpu {
namespace {

using test::drawn;

constexpr std::int64_t padding = 3;  // leading dimensions are larger than the rows

struct Matrix {
  std::int64_t rows, columns, leading;
  std::vector<float> values;
  Matrix(std::int64_t rows_, std::int64_t columns_, std::uint64_t seed)
      : rows(rows_), columns(columns_), leading(columns_ + padding), values(drawn(rows_ * leading, seed)) {}
  double at(std::int64_t i, std::int64_t j, bool transposed) const {
    return static_cast<double>(values[static_cast<std::size_t>(transposed ? j * leading + i : i * leading + j)]);
  }
};

// Multiplies and compares with sums in double; also that the padding of C was left alone.
void check(MatrixProduct& product, ProductShape shape) {
  const Matrix a(shape.transposeA ? shape.k : shape.m, shape.transposeA ? shape.m : shape.k, 1);
  const Matrix b(shape.transposeB ? shape.n : shape.k, shape.transposeB ? shape.k : shape.n, 2);
  Matrix c(shape.m, shape.n, 3);
  const Matrix before = c;
  if (shape.beta == 0) {  // what C holds must not matter
    for (std::int64_t i = 0; i < c.rows; ++i) {
      for (std::int64_t j = 0; j < c.columns; ++j) {
        c.values[static_cast<std::size_t>(i * c.leading + j)] = std::numeric_limits<float>::quiet_NaN();
      }
    }
  }
  shape.leadingA = a.leading;
  shape.leadingB = b.leading;
  shape.leadingC = c.leading;
  product.multiply(shape, a.values.data(), b.values.data(), c.values.data());
  for (std::int64_t i = 0; i < shape.m; ++i) {
    for (std::int64_t j = 0; j < shape.n; ++j) {
      double sum = 0;
      for (std::int64_t k = 0; k < shape.k; ++k) sum += a.at(i, k, shape.transposeA) * b.at(k, j, shape.transposeB);
      const double wanted = static_cast<double>(shape.alpha) * sum +
                            (shape.beta == 0 ? 0 : static_cast<double>(shape.beta) * before.at(i, j, false));
      ASSERT_NEAR(c.at(i, j, false), wanted, 1e-5 * (1 + std::sqrt(static_cast<double>(shape.k))))
          << product.name() << " m " << shape.m << " n " << shape.n << " k " << shape.k << " at " << i << "," << j;
    }
    for (std::int64_t j = shape.n; j < c.leading; ++j) ASSERT_EQ(c.at(i, j, false), before.at(i, j, false));
  }
}

std::vector<std::string> libraries() {
#ifdef TANDEM_WITH_ONEDNN
  return {"openblas", "onednn"};
#else
  return {"openblas"};
#endif
}

TEST(MatrixProduct, givesTheProductForEveryTranspositionScaleAndOddShape) {
  for (const std::string& library : libraries()) {
    for (const int threads : {1, 2, 3}) {
      const auto product = makeMatrixProduct(library, threads);
      for (const bool transposeA : {false, true}) {
        for (const bool transposeB : {false, true}) {
          for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{1, 1, 1}, {3, 17, 5}, {65, 1, 33}, {70, 90, 129}}) {
            for (const auto& [alpha, beta] : {std::pair{1.0f, 0.0f}, {1.0f, 1.0f}, {-0.5f, 2.0f}}) {
              check(*product, ProductShape{.transposeA = transposeA,
                                           .transposeB = transposeB,
                                           .m = m,
                                           .n = n,
                                           .k = k,
                                           .alpha = alpha,
                                           .beta = beta});
            }
          }
        }
      }
    }
  }
}

TEST(MatrixProduct, acceptsExtentsOfZero) {
  for (const std::string& library : libraries()) {
    const auto product = makeMatrixProduct(library, 2);
    for (const float beta : {0.0f, 2.0f}) {
      check(*product, ProductShape{.m = 4, .n = 5, .k = 0, .beta = beta});
      check(*product, ProductShape{.m = 0, .n = 5, .k = 3, .beta = beta});
      check(*product, ProductShape{.m = 4, .n = 0, .k = 3, .beta = beta});
    }
  }
}

TEST(MatrixProduct, refusesALibraryThatDoesNotExist) {
  for (const char* wanted : {"mkl", "", "OpenBLAS"}) {
    try {
      makeMatrixProduct(wanted, 1);
      FAIL() << wanted << " was found";
    } catch (const base::Error& error) {
      EXPECT_EQ(error.kind(), base::ErrorKind::usage);
      EXPECT_NE(error.message().find(std::string("'") + wanted + "'"), std::string::npos) << error.message();
      EXPECT_NE(error.message().find("openblas"), std::string::npos) << error.message();
    }
  }
}

TEST(MatrixProduct, choosesTheSameLibraryEveryTime) {
  const MatrixLibrary choice = chooseMatrixLibrary("auto");
  EXPECT_FALSE(choice.reason.empty());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(chooseMatrixLibrary("auto").name, choice.name);
}

}  // namespace
}  // namespace tandem::kernels::cpu
