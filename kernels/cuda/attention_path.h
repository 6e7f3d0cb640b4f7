#pragma once
// Which attention kernels run, and why: a fallback is never silent.

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "kernels/cuda/attention_clock.h"
#include "kernels/cuda/device.h"

namespace tandem::kernels::cuda {

enum class AttentionKernels {
  cudnn,        // graphs of cuDNN, of calls that it has a plan for
  tensorCores,  // own flash attention on mma.sync
  plain,        // a warp a query, any type and head size up to 256: what is left, and the check of the others
};

// What --attention chose for a device, and what has become of it since. All streams of a backend share it, from one
// thread.
class AttentionPaths {
 public:
  // `name` is --attention: auto, cudnn, mma or reference. `cudnn` is the name of the cuDNN that was found, or else
  // whyNoCudnn says why there is none. Throws Error of kind usage for another name, or for a path that cannot run here.
  AttentionPaths(const std::string& name, const DeviceProperties& device, const std::string& cudnn,
                 const std::string& whyNoCudnn);

  // For logs: the paths in the order in which calls are offered to them, and what `auto` rejected and why.
  const std::string& description() const { return description_; }

  // Whether calls are offered to these kernels at all.
  bool tries(AttentionKernels kernels) const;
  // Says whether these kernels took a call of that operator: `obstacle` is why they could not, empty if they could.
  // Logs each reason once; throws Error of kind usage where the path was asked for by name.
  bool took(AttentionKernels kernels, const std::string& operatorName, const std::string& obstacle);

  // For the clock, under kindOf().
  AttentionClock& clock() { return clock_; }
  static std::string kindOf(const std::string& operatorName, AttentionKernels kernels);
  // "Attention by cuDNN 9.26.0 at 312 TFLOP/s; AttentionBackward by own flash attention on mma.sync at 190 TFLOP/s (not
  // by cuDNN 9.26.0: ...)". Empty while nothing has run.
  std::string report();

 private:
  std::string nameOf(AttentionKernels kernels) const;
  std::string whyNotOthers(const std::string& operatorName, AttentionKernels kernels) const;

  bool triesCudnn_ = false, triesTensorCores_ = false;
  bool demandsCudnn_ = false, demandsTensorCores_ = false;
  std::string cudnn_, description_;
  std::map<std::pair<std::string, AttentionKernels>, std::string> obstacles_;  // the first one of each
  std::map<std::string, bool> logged_;
  AttentionClock clock_;
};

}  // namespace tandem::kernels::cuda
