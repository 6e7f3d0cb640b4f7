#pragma once
// Attention as a graph of cuDNN's, built through cudnn-frontend: what it takes and what it does not, it is asked.
//
// kernels/cuda/cudnn has it, where the build found the headers; kernels/cuda/without_cudnn says that it did not. cuDNN
// itself (libcudnn.so.9) is opened when a backend is made, so that one program serves machines with and without it.

#include <memory>
#include <string>

#include "kernels/cuda/operators.h"

namespace tandem::kernels::cuda {

class CudnnAttention {
 public:
  virtual ~CudnnAttention() = default;
  virtual std::string name() const = 0;  // "cuDNN 9.26.0"
  // Enqueues the call and returns nothing; or says why cuDNN does not, having enqueued nothing that matters: the call
  // can go to other kernels. A call that was refused once is refused again without asking.
  virtual std::string run(const Attention& call, Context& context) = 0;
  virtual std::string run(const AttentionBackward& call, Context& context) = 0;
};

struct CudnnSearch {
  std::unique_ptr<CudnnAttention> attention;  // null: there is a reason
  std::string whyNot;
};
CudnnSearch findCudnn();

}  // namespace tandem::kernels::cuda
