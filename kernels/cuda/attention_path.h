#pragma once
// Which attention kernels run, and why: a fallback is never silent.

#include <string>

#include "kernels/cuda/device.h"

namespace tandem::kernels::cuda {

enum class AttentionPath {
  tensorCores,      // own flash attention on mma.sync where it can take a call, else the plain kernels, which is logged
  tensorCoresOnly,  // the same, asked for by name: a call that it cannot take is an error
  plain,            // a warp a query, any type and head size up to 256: what is left, and the check of the other
};

struct AttentionChoice {
  AttentionPath path = AttentionPath::tensorCores;
  std::string description;  // for logs: the path, and what `auto` rejected and why
};

// `name` is --attention: auto, mma or reference. Throws Error of kind usage for another, or for one that the device
// lacks.
AttentionChoice chooseAttentionPath(const std::string& name, const DeviceProperties& device);

// Whether a call goes to the tensor cores. `obstacle` says why it cannot; empty if it can. Logs a fallback once for
// each reason; throws Error of kind usage where the path was asked for by name.
bool takesTensorCores(AttentionPath path, const std::string& operatorName, const std::string& obstacle);

}  // namespace tandem::kernels::cuda
