// What stands in for kernels/cuda in a build without CUDA.
#include "common/base/error.h"
#include "kernels/backend.h"

namespace tandem::kernels {

std::unique_ptr<Backend> makeCudaBackend(const CudaOptions&) {
  throw base::Error(base::ErrorKind::device, "no CUDA device can be used: " + whyNoCuda());
}

std::string whyNoCuda() {
  return "this build has no CUDA (configure with the preset `cuda`, on a machine with the CUDA toolkit)";
}

int cudaDeviceCount() { return 0; }

std::string cudaVersion() { return "not in this build"; }

}  // namespace tandem::kernels
