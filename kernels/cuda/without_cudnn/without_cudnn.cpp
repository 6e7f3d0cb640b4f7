// What stands in for kernels/cuda/cudnn in a build without the headers of cuDNN and cudnn-frontend.
#include "kernels/cuda/cudnn_attention.h"

namespace tandem::kernels::cuda {

CudnnSearch findCudnn() {
  return {nullptr, "this build has no cuDNN (CMake did not find cudnn.h and cudnn_frontend.h; see docs/cuda.md)"};
}

}  // namespace tandem::kernels::cuda
