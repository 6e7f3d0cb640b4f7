// MatrixProduct against plain loops in double: what is wrong in a leading dimension, a transposition or an epilogue's
// pointer shows here, at the vendor's own symbols.
#include "kernels/cuda/matrix_product.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <vector>

#include "common/base/error.h"
#include "common/base/random.h"

namespace simt {
extern int last_product_algorithm;
}

namespace tandem::kernels::cuda {

namespace {

double stored(DType type, double value) {
  const auto single = static_cast<float>(value);
  if (type == DType::bf16) return __bfloat162float(__float2bfloat16(single));
  return type == DType::f16 ? __half2float(__float2half(single)) : single;
}

// A matrix on the device and what it holds. `shift`: elements that it misses an aligned address by.
class Placed {
 public:
  Placed(std::int64_t rows, std::int64_t columns, DType type, std::uint64_t seed, std::int64_t gap = 0,
         std::int64_t shift = 0)
      : type_(type), shift_(shift) {
    values.resize(static_cast<std::size_t>(rows * (columns + gap)));
    base::RandomStream random(seed, 0);
    for (double& value : values) value = stored(type, static_cast<double>(random.nextNormal()));
    check(cudaMalloc(&memory_, bytes()), "test");
    matrix = {static_cast<std::byte*>(memory_) + shift * base::byteSize(type), type, rows, columns, columns + gap};
    upload();
  }
  ~Placed() { cudaFree(memory_); }
  Placed(const Placed&) = delete;
  Placed& operator=(const Placed&) = delete;

  double at(std::int64_t row, std::int64_t column) const {
    return values[static_cast<std::size_t>(row * matrix.stride + column)];
  }
  double& at(std::int64_t row, std::int64_t column) {
    return values[static_cast<std::size_t>(row * matrix.stride + column)];
  }
  // op(matrix)[row, column]
  double at(bool transposed, std::int64_t row, std::int64_t column) const {
    return transposed ? at(column, row) : at(row, column);
  }
  void upload() {
    std::vector<std::byte> image(bytes());
    for (std::size_t i = 0; i < values.size(); ++i) put(image, i + static_cast<std::size_t>(shift_), values[i]);
    check(cudaMemcpy(memory_, image.data(), image.size(), cudaMemcpyHostToDevice), "test");
  }
  std::vector<double> download() const {
    std::vector<std::byte> image(bytes());
    check(cudaMemcpy(image.data(), memory_, image.size(), cudaMemcpyDeviceToHost), "test");
    std::vector<double> result(values.size());
    for (std::size_t i = 0; i < result.size(); ++i) result[i] = get(image, i + static_cast<std::size_t>(shift_));
    return result;
  }

  std::vector<double> values;  // with the gaps between rows
  Matrix matrix;

 private:
  std::size_t bytes() const {
    return (values.size() + static_cast<std::size_t>(shift_)) * static_cast<std::size_t>(base::byteSize(type_));
  }
  template <class T>
  static T* elements(const std::vector<std::byte>& image) {
    return reinterpret_cast<T*>(const_cast<std::byte*>(image.data()));
  }
  void put(std::vector<std::byte>& image, std::size_t i, double value) const {
    if (type_ == DType::f32) elements<float>(image)[i] = static_cast<float>(value);
    if (type_ == DType::bf16) elements<__nv_bfloat16>(image)[i] = __float2bfloat16(static_cast<float>(value));
    if (type_ == DType::f16) elements<__half>(image)[i] = __float2half(static_cast<float>(value));
  }
  double get(const std::vector<std::byte>& image, std::size_t i) const {
    if (type_ == DType::f32) return elements<float>(image)[i];
    return type_ == DType::bf16 ? __bfloat162float(elements<__nv_bfloat16>(image)[i])
                                : __half2float(elements<__half>(image)[i]);
  }

  DType type_;
  std::int64_t shift_;
  void* memory_ = nullptr;
};

struct Size {
  std::int64_t rows, columns, terms;
};
struct Types {
  DType operands, target;
};
const std::vector<Types> allTypes = {{DType::f32, DType::f32},
                                     {DType::bf16, DType::bf16},
                                     {DType::bf16, DType::f32},
                                     {DType::f16, DType::f16},
                                     {DType::f16, DType::f32}};

// The operands of one product.
struct Operands {
  Operands(const Size& size, const Types& types, bool transposeLeft = false, bool transposeRight = false,
           std::int64_t gap = 0, std::int64_t shift = 0)
      : left(transposeLeft ? size.terms : size.rows, transposeLeft ? size.rows : size.terms, types.operands, 1, gap,
             shift),
        right(transposeRight ? size.columns : size.terms, transposeRight ? size.terms : size.columns, types.operands, 2,
              gap, shift),
        target(size.rows, size.columns, types.target, 3, gap, shift),
        product{.left = left.matrix,
                .transposeLeft = transposeLeft,
                .right = right.matrix,
                .transposeRight = transposeRight,
                .target = target.matrix} {}

  double sum(std::int64_t row, std::int64_t column) const {
    const std::int64_t terms = product.transposeLeft ? left.matrix.rows : left.matrix.columns;
    double total = 0;
    for (std::int64_t x = 0; x < terms; ++x) {
      total += left.at(product.transposeLeft, row, x) * right.at(product.transposeRight, x, column);
    }
    return total * static_cast<double>(product.factor);
  }

  Placed left, right, target;
  Product product;
};

double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
double geluSlope(double x) { return (gelu(x + 1e-5) - gelu(x - 1e-5)) / 2e-5; }

void expectNear(double got, double want, DType type, double magnitude, const char* what) {
  const double tolerance = type == DType::f32 ? 2e-6 : type == DType::bf16 ? 5e-3 : 1e-3;
  EXPECT_NEAR(got, want, tolerance * (std::abs(want) + magnitude)) << what;
}

// `got` has wanted(row, column) in its elements, and in the gaps what `before` has there.
void expectMatrix(const std::vector<double>& got, const Placed& before, double magnitude, const char* what,
                  const std::function<double(std::int64_t, std::int64_t)>& wanted) {
  const Matrix& matrix = before.matrix;
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    for (std::int64_t column = 0; column < matrix.stride; ++column) {
      const auto i = static_cast<std::size_t>(row * matrix.stride + column);
      if (column >= matrix.columns) {
        EXPECT_EQ(got[i], before.values[i]) << what << ": wrote beside a row";
      } else {
        expectNear(got[i], wanted(row, column), matrix.type, magnitude, what);
      }
      if (testing::Test::HasFailure()) return;
    }
  }
}

class MatrixProducts : public testing::Test {
 protected:
  MatrixProducts() {
    device_ = useDevice(0);
    products_ = makeMatrixProduct({.tune = true});
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "test");
  }
  ~MatrixProducts() override { cudaStreamDestroy(stream_); }

  void run(const Product& product) { run(*products_, product); }
  void run(MatrixProduct& products, const Product& product) {
    products.run(product, stream_, scratch_);
    check(cudaStreamSynchronize(stream_), "test");
  }

  DeviceProperties device_;
  std::unique_ptr<MatrixProduct> products_;
  Scratch scratch_;
  cudaStream_t stream_ = nullptr;
};

std::size_t freeBytes() {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "test");
  return free;
}

// So that it ends with the stream, and recorded products notice when it moves.
TEST_F(MatrixProducts, takeTheirWorkspaceFromTheScratchOfTheStream) {
  const Operands o(Size{16, 24, 64}, allTypes.front(), false, false, 0, 0);
  run(o.product);
  const std::size_t before = freeBytes();
  {
    Scratch other;
    products_->run(o.product, stream_, other);
    check(cudaStreamSynchronize(stream_), "test");
    EXPECT_GT(other.generation(), 0);
    EXPECT_LT(freeBytes(), before);
  }
  EXPECT_EQ(freeBytes(), before);
}

TEST_F(MatrixProducts, multiplyHoweverTheOperandsAreTransposedAndStored) {
  for (const Size& size : {Size{1, 1, 1}, Size{3, 17, 5}, Size{16, 24, 64}, Size{33, 10, 130}}) {
    for (const Types& types : allTypes) {
      for (const int transposes : {0, 1, 2, 3}) {
        for (const auto& [gap, shift] : {std::pair{0, 0}, std::pair{3, 1}, std::pair{8, 0}}) {
          Operands o(size, types, transposes & 1, transposes & 2, gap, shift);
          o.product.factor = 0.75f;
          run(o.product);
          expectMatrix(o.target.download(), o.target, std::sqrt(static_cast<double>(size.terms)), "product",
                       [&](auto row, auto column) { return o.sum(row, column); });
          ASSERT_FALSE(HasFailure()) << size.rows << " x " << size.columns << " x " << size.terms << " "
                                     << base::name(types.operands) << " to " << base::name(types.target)
                                     << " transposes " << transposes << " gap " << gap;
        }
      }
    }
  }
}

TEST_F(MatrixProducts, addToTheirTargetOrToAnotherMatrix) {
  for (const Types& types : allTypes) {
    Operands o({7, 19, 70}, types, true, false, 5);
    accumulate(o.product);
    run(o.product);
    expectMatrix(o.target.download(), o.target, 9, "added to the target",
                 [&](auto row, auto column) { return o.sum(row, column) + o.target.at(row, column); });
    Placed addend(7, 19, types.target, 4, 2);
    o.product.addend = addend.matrix;
    o.product.addendFactor = -2.5f;
    run(o.product);
    expectMatrix(o.target.download(), o.target, 9, "added to another",
                 [&](auto row, auto column) { return o.sum(row, column) - 2.5 * addend.at(row, column); });
    expectMatrix(addend.download(), addend, 0, "the addend",
                 [&](auto row, auto column) { return addend.at(row, column); });
  }
}

TEST_F(MatrixProducts, addTheBiasOfTheirColumns) {
  for (const Types& types : allTypes) {
    for (const int shift : {0, 1}) {
      Operands o({5, 23, 66}, types, false, true, 1);
      Placed bias(1, 23, types.target, 4, 0, shift);
      o.product.epilogue = Epilogue::bias;
      o.product.vector = bias.matrix.data;
      run(o.product);
      expectMatrix(o.target.download(), o.target, 9, "biased",
                   [&](auto row, auto column) { return o.sum(row, column) + bias.at(0, column); });
    }
  }
}

// The plan of a shape is kept, not what an earlier call of it pointed to.
TEST_F(MatrixProducts, addTheBiasThatTheCallBrings) {
  Operands o({5, 24, 64}, allTypes.front(), false, true, 1);
  const Placed first(1, 24, allTypes.front().target, 4), second(1, 24, allTypes.front().target, 5);
  o.product.epilogue = Epilogue::bias;
  for (const Placed* bias : {&first, &second, &first}) {
    o.product.vector = bias->matrix.data;
    run(o.product);
    expectMatrix(o.target.download(), o.target, 9, "biased",
                 [&](auto row, auto column) { return o.sum(row, column) + bias->at(0, column); });
  }
}

TEST_F(MatrixProducts, goThroughGeluAndKeepItsArgument) {
  for (const Types& types : allTypes) {
    for (const bool biased : {false, true}) {
      for (const bool keeps : {false, true}) {
        Operands o({6, 24, 9}, types, false, true, 3);
        Placed bias(1, 24, types.target, 4), argument(6, 24, types.target, 5, 8);
        o.product.epilogue = biased ? Epilogue::geluBias : Epilogue::gelu;
        if (biased) o.product.vector = bias.matrix.data;
        if (keeps) o.product.auxiliary = argument.matrix;
        const auto sum = [&](auto row, auto column) {
          return o.sum(row, column) + (biased ? bias.at(0, column) : 0.0);
        };
        run(o.product);
        expectMatrix(o.target.download(), o.target, 4, "value",
                     [&](auto row, auto column) { return gelu(sum(row, column)); });
        expectMatrix(argument.download(), argument, 4, "argument",
                     [&](auto row, auto column) { return keeps ? sum(row, column) : argument.at(row, column); });
      }
    }
  }
}

TEST_F(MatrixProducts, areMultipliedByTheSlopesOfGelu) {
  for (const Types& types : allTypes) {
    Operands o({6, 23, 9}, types);
    Placed argument(6, 23, types.target, 5, 1);
    o.product.epilogue = Epilogue::geluBackward;
    o.product.auxiliary = argument.matrix;
    run(o.product);
    expectMatrix(o.target.download(), o.target, 4, "gradient",
                 [&](auto row, auto column) { return o.sum(row, column) * geluSlope(argument.at(row, column)); });
  }
}

TEST_F(MatrixProducts, sumTheRowsOfTheirLeftOperand) {
  for (const Types& types : allTypes) {
    for (const bool transposed : {false, true}) {
      Operands o({16, 24, 40}, types, transposed);
      Placed sums(1, 16, types.target, 4);
      o.product.epilogue = Epilogue::leftSums;
      o.product.vector = sums.matrix.data;
      accumulate(o.product);
      ASSERT_TRUE(products_->offers(o.product));
      run(o.product);
      expectMatrix(o.target.download(), o.target, 7, "product",
                   [&](auto row, auto column) { return o.sum(row, column) + o.target.at(row, column); });
      expectMatrix(sums.download(), sums, 7, "sums", [&](auto, auto row) {
        double sum = 0;
        for (std::int64_t x = 0; x < 40; ++x) sum += o.left.at(transposed, row, x);
        return sum;
      });
    }
  }
}

TEST_F(MatrixProducts, ofNoTermsAreZero) {
  Operands o({4, 5, 0}, {DType::bf16, DType::f32}, true, false, 2);
  Placed sums(1, 4, DType::f32, 4);
  o.product.epilogue = Epilogue::leftSums;
  o.product.vector = sums.matrix.data;
  accumulate(o.product);
  run(o.product);
  expectMatrix(o.target.download(), o.target, 0, "kept",
               [&](auto row, auto column) { return o.target.at(row, column); });
  EXPECT_EQ(sums.download(), std::vector<double>(4, 0.0));
  o.product.addend = {};
  run(o.product);
  expectMatrix(o.target.download(), o.target, 0, "cleared", [](auto, auto) { return 0; });
}

TEST_F(MatrixProducts, saySoWhenAnEpilogueIsNotOffered) {
  Operands o({6, 20, 9}, {DType::bf16, DType::bf16}, false, true);
  Placed odd(6, 20, DType::bf16, 5), shifted(6, 24, DType::bf16, 5, 0, 1);
  o.product.epilogue = Epilogue::gelu;
  EXPECT_TRUE(products_->offers(o.product));
  o.product.auxiliary = odd.matrix;  // rows of 20 elements are not rows of whole groups of 8
  EXPECT_FALSE(products_->offers(o.product));
  o.product.auxiliary = {shifted.matrix.data, DType::bf16, 6, 20, 24};
  EXPECT_FALSE(products_->offers(o.product));
  try {
    run(o.product);
    FAIL() << "ran what it does not offer";
  } catch (const base::Error& error) {
    EXPECT_EQ(error.kind(), base::ErrorKind::device);
    EXPECT_NE(std::string(error.what()).find("bfloat16 [6, 9] times bfloat16 [20, 9]^T into bfloat16 [6, 20], GELU"),
              std::string::npos)
        << error.what();
  }
}

TEST_F(MatrixProducts, refuseTypesThatTheyDoNotKnow) {
  Operands o({2, 2, 2}, {DType::f32, DType::f32});
  for (Matrix* matrix : {&o.product.left, &o.product.right, &o.product.target}) matrix->type = DType::i32;
  try {
    run(o.product);
    FAIL() << "multiplied integers";
  } catch (const base::Error& error) {
    EXPECT_EQ(error.kind(), base::ErrorKind::usage);
    EXPECT_NE(std::string(error.what()).find("int32"), std::string::npos) << error.what();
  }
}

TEST_F(MatrixProducts, keepTheFastestAlgorithmOfAShapeAndAddOnce) {
  ASSERT_EQ(setenv("SIMT_CUBLASLT_CANDIDATES", "3", 1), 0);
  Operands o({7, 19, 70}, {DType::bf16, DType::f32}, true, false, 5, 1);
  accumulate(o.product);
  run(o.product);
  unsetenv("SIMT_CUBLASLT_CANDIDATES");
  EXPECT_NE(simt::last_product_algorithm, 0) << "the first of three is slow";
  expectMatrix(o.target.download(), o.target, 9, "added once",
               [&](auto row, auto column) { return o.sum(row, column) + o.target.at(row, column); });
  const int kept = simt::last_product_algorithm;
  Operands other({3, 3, 3}, {DType::f32, DType::f32});
  run(other.product);
  EXPECT_EQ(simt::last_product_algorithm, 0);
  run(o.product);
  EXPECT_EQ(simt::last_product_algorithm, kept) << "chosen anew for the same shape";
}

TEST_F(MatrixProducts, takeAnotherAlgorithmForAnOperandThatIsLessAligned) {
  const Size size{16, 24, 40};
  Operands o(size, {DType::bf16, DType::bf16}), shifted(size, {DType::bf16, DType::bf16}, false, false, 0, 1);
  Placed bias(1, 24, DType::bf16, 4), shiftedBias(1, 24, DType::bf16, 4, 0, 1);
  const auto expectRight = [&](Product product, const Placed& target) {
    product.epilogue = Epilogue::bias;
    if (product.vector == nullptr) product.vector = bias.matrix.data;
    run(product);
    expectMatrix(target.download(), target, 7, "product",
                 [&](auto row, auto column) { return o.sum(row, column) + bias.at(0, column); });
  };
  expectRight(o.product, o.target);
  Product product = o.product;
  product.left = shifted.left.matrix;
  expectRight(product, o.target);
  product = o.product;
  product.right = shifted.right.matrix;
  expectRight(product, o.target);
  product = o.product;
  product.target = shifted.target.matrix;
  expectRight(product, shifted.target);
  product = o.product;
  product.vector = shiftedBias.matrix.data;
  expectRight(product, o.target);
}

TEST_F(MatrixProducts, roundFloatsOnlyWhenTf32IsWanted) {
  Operands o({1, 1, 1}, {DType::f32, DType::f32});
  o.left.values[0] = 1 + std::ldexp(1.0, -12);
  o.right.values[0] = 1;
  o.left.upload();
  o.right.upload();
  run(o.product);
  EXPECT_EQ(o.target.download()[0], 1 + std::ldexp(1.0, -12));
  const auto rounding = makeMatrixProduct({.tf32 = true});
  run(*rounding, o.product);
  EXPECT_EQ(o.target.download()[0], 1);
  EXPECT_EQ(products_->name().find("tf32"), std::string::npos);
  EXPECT_NE(rounding->name().find("tf32"), std::string::npos);
  EXPECT_EQ(products_->name().find("cuBLASLt 13."), 0u) << products_->name();
}

}  // namespace

}  // namespace tandem::kernels::cuda
