#include "common/runtime/matrix_rate.h"

#include <algorithm>
#include <chrono>

#include "common/runtime/executable.h"

namespace tandem::runtime {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double busySeconds = 4e-3;  // a product of this length hides how long it takes to start one
constexpr double measuringSeconds = 0.2;
constexpr std::int64_t largestSize = 8192;

// Rates of products of matrices of one size.
class SquareProduct {
 public:
  SquareProduct(std::int64_t size, base::DType storage, kernels::Backend& backend, kernels::Stream& stream)
      : size_(size),
        storage_(storage),
        backend_(backend),
        stream_(stream),
        memory_(backend, 3 * size * size * base::byteSize(storage)) {
    for (std::int64_t index = 0; index < 3; ++index) {
      backend.run(kernels::Fill{.target = matrix(index), .value = 1e-3f}, stream);
    }
  }

  double seconds() const {
    stream_.synchronize();
    const Clock::time_point start = Clock::now();
    backend_.run(kernels::Linear{.input = matrix(0), .weight = matrix(1), .output = matrix(2)}, stream_);
    stream_.synchronize();
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  double operations() const { return 2.0 * static_cast<double>(size_) * static_cast<double>(size_ * size_); }

 private:
  kernels::TensorView matrix(std::int64_t index) const {
    return kernels::TensorView(memory_.data() + index * size_ * size_ * base::byteSize(storage_), storage_,
                               {size_, size_});
  }

  std::int64_t size_;
  base::DType storage_;
  kernels::Backend& backend_;
  kernels::Stream& stream_;
  DeviceMemory memory_;
};

}  // namespace

double measureMatrixRate(base::DType storage, kernels::Backend& backend, kernels::Stream& stream) {
  return measureMatrixRates(storage, backend, stream).best;
}

MatrixRates measureMatrixRates(base::DType storage, kernels::Backend& backend, kernels::Stream& stream) {
  for (std::int64_t size = 256;; size *= 2) {
    const SquareProduct product(size, storage, backend, stream);
    product.seconds();  // the first one chooses an algorithm and fills caches
    if (product.seconds() < busySeconds && size < largestSize) continue;
    MatrixRates rates;
    double seconds = 0, operations = 0;
    while (seconds < measuringSeconds) {
      const double one = product.seconds();
      rates.best = std::max(rates.best, product.operations() / one);
      seconds += one;
      operations += product.operations();
    }
    rates.mean = operations / seconds;
    return rates;
  }
}

}  // namespace tandem::runtime
