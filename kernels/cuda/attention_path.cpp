#include "kernels/cuda/attention_path.h"

#include <mutex>
#include <set>

#include "common/base/error.h"
#include "common/base/log.h"

namespace tandem::kernels::cuda {

namespace {

const char* const tensorCoreKernels =
    "own flash attention on mma.sync (bfloat16 and float16, head sizes 64, 80, 96 and 128)";
const char* const plainKernels = "plain kernels (float32, bfloat16 and float16, head sizes up to 256)";

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

}  // namespace

AttentionChoice chooseAttentionPath(const std::string& name, const DeviceProperties& device) {
  if (name == "reference") {
    return {AttentionPath::plain, std::string(plainKernels) + ", as --attention reference asks"};
  }
  if (name != "auto" && name != "mma") {
    throw base::Error(base::ErrorKind::usage,
                      "there is no attention path '" + name + "'; --attention can be auto, mma or reference");
  }
  const std::string obstacle = whyNoTensorCores(device);
  if (name == "mma") {
    if (!obstacle.empty()) {
      throw base::Error(base::ErrorKind::usage, "--attention mma cannot run: " + obstacle + "; use --attention auto");
    }
    return {AttentionPath::tensorCoresOnly,
            std::string(tensorCoreKernels) + ", as --attention mma asks: other calls are errors"};
  }
  if (!obstacle.empty()) {
    return {AttentionPath::plain, std::string(plainKernels) + "; auto rejected mma: " + obstacle};
  }
  return {AttentionPath::tensorCores, std::string(tensorCoreKernels) + ", else " + plainKernels +
                                          "; auto rejected reference: slower wherever both can run"};
}

bool takesTensorCores(AttentionPath path, const std::string& operatorName, const std::string& obstacle) {
  if (path == AttentionPath::plain) return false;
  if (obstacle.empty()) return true;
  if (path == AttentionPath::tensorCoresOnly) {
    throw base::Error(base::ErrorKind::usage, "--attention mma cannot take a call of " + operatorName + ": " +
                                                  obstacle + "; use --attention auto, which takes the plain kernels");
  }
  static std::mutex mutex;
  static std::set<std::string> logged;
  const std::lock_guard lock(mutex);
  if (logged.insert(obstacle).second) {
    TANDEM_LOG(info) << "attention: the plain kernels serve " << operatorName
                     << " (and any other call like it), not the tensor cores: " << obstacle;
  }
  return false;
}

}  // namespace tandem::kernels::cuda
