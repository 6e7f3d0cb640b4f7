#include "kernels/cuda/attention_path.h"

#include <vector>

#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/units.h"

namespace tandem::kernels::cuda {

namespace {

const char* const tensorCoreKernels = "own flash attention on mma.sync";
const char* const tensorCoreLimits = " (bfloat16 and float16, head sizes 64, 80, 96 and 128)";
const char* const plainKernels = "plain kernels";
const char* const plainLimits = " (float32, bfloat16 and float16, head sizes up to 256)";

// bfloat16 fragments came with compute capability 8.0, and the tiles take up to 99 KiB of shared memory.
std::string whyNoTensorCores(const DeviceProperties& device) {
  constexpr std::int64_t sharedBytes = 99 * 1024;
  if (device.major < 8) {
    return device.name + " is sm_" + std::to_string(device.major) + std::to_string(device.minor) +
           ", and bfloat16 on tensor cores begins with sm_80";
  }
  if (device.sharedBytesPerBlock < sharedBytes) {
    return device.name + " gives a block " + std::to_string(device.sharedBytesPerBlock) +
           " bytes of shared memory of the " + std::to_string(sharedBytes) + " needed";
  }
  return "";
}

std::string joined(const std::vector<std::string>& parts, const std::string& separator) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : separator) + part;
  return text;
}

[[noreturn]] void refuse(const std::string& message) { throw base::Error(base::ErrorKind::usage, message); }

}  // namespace

AttentionPaths::AttentionPaths(const std::string& name, const DeviceProperties& device, const std::string& cudnn,
                               const std::string& whyNoCudnn)
    : demandsCudnn_(name == "cudnn"), demandsTensorCores_(name == "mma"), cudnn_(cudnn) {
  const std::string plain = std::string(plainKernels) + plainLimits;
  if (name == "reference") {
    description_ = plain + ", as --attention reference asks";
    return;
  }
  if (name != "auto" && name != "cudnn" && name != "mma") {
    refuse("there is no attention path '" + name + "'; --attention can be auto, cudnn, mma or reference");
  }
  const std::string obstacle = whyNoTensorCores(device);
  if (demandsCudnn_ && cudnn.empty()) {
    refuse("--attention cudnn cannot run: " + whyNoCudnn + "; use --attention auto");
  }
  if (demandsTensorCores_ && !obstacle.empty()) {
    refuse("--attention mma cannot run: " + obstacle + "; use --attention auto");
  }
  triesCudnn_ = demandsCudnn_ || (name == "auto" && !cudnn.empty());
  triesTensorCores_ = obstacle.empty();  // with cudnn by name, over a KV cache only
  const std::string others = ", as --attention " + name + " asks: other calls are errors";
  if (demandsTensorCores_) {
    description_ = std::string(tensorCoreKernels) + tensorCoreLimits + others;
  } else if (demandsCudnn_) {
    description_ = cudnn + others + " (over a KV cache own kernels run)";
  } else {
    std::vector<std::string> paths, rejected;
    if (triesCudnn_) paths.push_back(cudnn);
    if (!triesCudnn_) rejected.push_back("cudnn: " + whyNoCudnn);
    if (triesTensorCores_) paths.push_back(std::string(tensorCoreKernels) + tensorCoreLimits);
    if (!triesTensorCores_) rejected.push_back("mma: " + obstacle);
    paths.push_back(plain);
    if (paths.size() > 1) rejected.push_back("reference: slower wherever another can run");
    description_ = joined(paths, ", else ") + "; auto rejected " + joined(rejected, "; ");
  }
}

bool AttentionPaths::tries(AttentionKernels kernels) const {
  if (kernels == AttentionKernels::cudnn) return triesCudnn_;
  return kernels == AttentionKernels::plain || triesTensorCores_;
}

std::string AttentionPaths::nameOf(AttentionKernels kernels) const {
  if (kernels == AttentionKernels::cudnn) return cudnn_;
  return kernels == AttentionKernels::tensorCores ? tensorCoreKernels : plainKernels;
}

std::string AttentionPaths::kindOf(const std::string& operatorName, AttentionKernels kernels) {
  return operatorName + static_cast<char>('0' + static_cast<int>(kernels));
}

bool AttentionPaths::took(AttentionKernels kernels, const std::string& operatorName, const std::string& obstacle) {
  if (obstacle.empty()) return true;
  const bool overCache = operatorName == "CachedAttention";
  const bool demanded = kernels == AttentionKernels::cudnn ? demandsCudnn_ && !overCache : demandsTensorCores_;
  if (demanded) {
    refuse(std::string("--attention ") + (kernels == AttentionKernels::cudnn ? "cudnn" : "mma") +
           " cannot take a call of " + operatorName + ": " + obstacle +
           "; use --attention auto, which takes other kernels");
  }
  obstacles_.try_emplace({operatorName, kernels}, obstacle);
  if (!logged_[nameOf(kernels) + obstacle]) {
    logged_[nameOf(kernels) + obstacle] = true;
    TANDEM_LOG(info) << "attention: " << operatorName << " (and any other call like it) is not for " << nameOf(kernels)
                     << ": " << obstacle;
  }
  return false;
}

std::string AttentionPaths::whyNotOthers(const std::string& operatorName, AttentionKernels kernels) const {
  std::vector<std::string> reasons;
  for (const AttentionKernels other : {AttentionKernels::cudnn, AttentionKernels::tensorCores}) {
    const auto found = obstacles_.find({operatorName, other});
    if (other < kernels && found != obstacles_.end()) {
      reasons.push_back("not by " + nameOf(other) + ": " + found->second);
    }
  }
  return reasons.empty() ? "" : " (" + joined(reasons, "; ") + ")";
}

std::string AttentionPaths::report() {
  std::vector<std::string> parts;
  const auto rates = clock_.rates();
  for (const char* operatorName : {"Attention", "AttentionBackward"}) {
    for (const AttentionKernels kernels :
         {AttentionKernels::cudnn, AttentionKernels::tensorCores, AttentionKernels::plain}) {
      const auto found = rates.find(kindOf(operatorName, kernels));
      if (found == rates.end()) continue;
      const double rate = found->second.operationsPerSecond;
      parts.push_back(std::string(operatorName) + " by " + nameOf(kernels) +
                      (rate > 0 ? " at " + base::formatFlops(rate) + "/s" : "") + whyNotOthers(operatorName, kernels));
    }
  }
  return joined(parts, "; ");
}

}  // namespace tandem::kernels::cuda
