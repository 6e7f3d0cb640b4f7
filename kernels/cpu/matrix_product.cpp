// The two matrix libraries behind the seam, and the rule that picks one.
#include "kernels/cpu/matrix_product.h"

#include <cblas.h>
#include <omp.h>

#include <algorithm>
#include <limits>

#ifdef TANDEM_WITH_ONEDNN
#include <dnnl.h>
#endif

#include "common/base/error.h"
#include "kernels/cpu/processor.h"

namespace tandem::kernels::cpu {

namespace {

// Both libraries take as many threads as OpenMP would; the caller's setting is put back.
class ThreadCount {
 public:
  explicit ThreadCount(int threads) : before_(omp_get_max_threads()) {
    if (before_ != threads) omp_set_num_threads(threads);
    changed_ = before_ != threads;
  }
  ~ThreadCount() {
    if (changed_) omp_set_num_threads(before_);
  }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  int before_;
  bool changed_ = false;
};

// What is left of a product without terms: C = beta * C. The libraries differ on this corner.
void scaleOnly(const ProductShape& shape, float* c) {
  for (std::int64_t i = 0; i < shape.m; ++i) {
    float* row = c + i * shape.leadingC;
    for (std::int64_t j = 0; j < shape.n; ++j) row[j] = shape.beta == 0 ? 0.0f : shape.beta * row[j];
  }
}

int blasInteger(std::int64_t value) {
  if (value > std::numeric_limits<int>::max()) {
    throw base::Error(base::ErrorKind::usage, "a matrix extent of " + std::to_string(value) +
                                                  " is beyond the 32-bit integers of OpenBLAS; use smaller batches");
  }
  return static_cast<int>(value);
}

class OpenBlas : public MatrixProduct {
 public:
  explicit OpenBlas(int threads) : threads_(threads) {}
  std::string name() const override { return std::string("OpenBLAS ") + openblas_get_corename(); }

  void multiply(const ProductShape& shape, const float* a, const float* b, float* c) override {
    if (shape.m == 0 || shape.n == 0) return;
    if (shape.k == 0) return scaleOnly(shape, c);
    const ThreadCount threads(threads_);
    cblas_sgemm(CblasRowMajor, shape.transposeA ? CblasTrans : CblasNoTrans,
                shape.transposeB ? CblasTrans : CblasNoTrans, blasInteger(shape.m), blasInteger(shape.n),
                blasInteger(shape.k), shape.alpha, a, blasInteger(shape.leadingA), b, blasInteger(shape.leadingB),
                shape.beta, c, blasInteger(shape.leadingC));
  }

 private:
  int threads_;
};

#ifdef TANDEM_WITH_ONEDNN
class OneDnn : public MatrixProduct {
 public:
  explicit OneDnn(int threads) : threads_(threads) {}
  std::string name() const override {
    const dnnl_version_t* version = dnnl_version();
    return "oneDNN " + std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
           std::to_string(version->patch);
  }

  void multiply(const ProductShape& shape, const float* a, const float* b, float* c) override {
    if (shape.m == 0 || shape.n == 0) return;
    if (shape.k == 0) return scaleOnly(shape, c);
    const ThreadCount threads(threads_);
    const dnnl_status_t status =
        dnnl_sgemm(shape.transposeA ? 'T' : 'N', shape.transposeB ? 'T' : 'N', shape.m, shape.n, shape.k, shape.alpha,
                   a, shape.leadingA, b, shape.leadingB, shape.beta, c, shape.leadingC);
    if (status != dnnl_success) {
      throw base::Error(base::ErrorKind::device, "oneDNN refused a matrix product of " + std::to_string(shape.m) +
                                                     " x " + std::to_string(shape.n) + " x " + std::to_string(shape.k) +
                                                     " with status " + std::to_string(static_cast<int>(status)));
    }
  }

 private:
  int threads_;
};
constexpr bool haveOneDnn = true;
std::unique_ptr<MatrixProduct> makeOneDnn(int threads) { return std::make_unique<OneDnn>(threads); }
#else
constexpr bool haveOneDnn = false;
std::unique_ptr<MatrixProduct> makeOneDnn(int) { return nullptr; }
#endif

}  // namespace

MatrixLibrary chooseMatrixLibrary(const std::string& library) {
  if (library == "openblas") return {"openblas", "as asked"};
  if (library == "onednn") {
    if (haveOneDnn) return {"onednn", "as asked"};
    throw base::Error(base::ErrorKind::usage,
                      "the matrix library onednn is not in this build; use auto or openblas, or build with oneDNN");
  }
  if (library != "auto") {
    throw base::Error(base::ErrorKind::usage,
                      "there is no matrix library '" + library + "'; it can be auto, onednn or openblas");
  }
  // GFLOP/s of processor time, one thread, oneDNN 2.6.3 / OpenBLAS 0.3.21, on a Zen 2 with AVX2 (FMA peak 97, caches
  // shared with other work), products of GPT-2 124M at 1024 rows: forward 71 / 64, input gradients 66 / 61, weight
  // gradients 67 / 61; at blocks of 256 rows 49 / 58. With AVX-512 oneDNN is ahead by two and more.
  if (haveOneDnn && isX86()) return {"onednn", "the faster one on x86-64"};
  return {"openblas", haveOneDnn ? "the faster one on this processor" : "the only one in this build"};
}

std::unique_ptr<MatrixProduct> makeMatrixProduct(const std::string& library, int threads) {
  if (chooseMatrixLibrary(library).name == "onednn") return makeOneDnn(threads);
  return std::make_unique<OpenBlas>(threads);
}

}  // namespace tandem::kernels::cpu
