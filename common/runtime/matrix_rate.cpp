#include "common/runtime/matrix_rate.h"

#include <algorithm>
#include <chrono>

#include "common/runtime/executable.h"

namespace tandem::runtime {

double measureMatrixRate(kernels::Backend& backend, kernels::Stream& stream) {
  using Clock = std::chrono::steady_clock;
  constexpr std::int64_t size = 1024;
  const DeviceMemory memory(backend, 3 * size * size * base::byteSize(base::DType::f32));
  auto matrix = [&](std::int64_t index) {
    return kernels::TensorView(memory.data() + index * size * size * 4, base::DType::f32, {size, size});
  };
  for (std::int64_t index = 0; index < 3; ++index)
    backend.run(kernels::Fill{.target = matrix(index), .value = 1e-3f}, stream);
  const kernels::Linear product{.input = matrix(0), .weight = matrix(1), .output = matrix(2)};
  double best = 0;
  const Clock::time_point end = Clock::now() + std::chrono::milliseconds(200);
  do {
    const Clock::time_point start = Clock::now();
    backend.run(product, stream);
    stream.synchronize();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::max(best, 2.0 * size * size * size / seconds);
  } while (Clock::now() < end);
  return best;
}

}  // namespace tandem::runtime
