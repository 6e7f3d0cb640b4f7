// Asks a real libcudnn.so.9 which calls of attention it has plans for, on devices that are only described: no GPU is
// needed. Prints a Markdown table. What the plans compute is not seen.
//
//   LD_LIBRARY_PATH=FOLDERS SIMT_ARCH=90 build/cpu/tests/cudnn_support      (SIMT_ARCH 80, 90 or 121)
//
// FOLDERS hold libcudnn.so.9 and what belongs to it, libnvrtc.so.13, and, where there is no driver, the CUDA toolkit's
// stubs/libcuda.so under the name libcuda.so.1.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "kernels/cuda/cudnn/attention_graph.h"
#include "kernels/cuda/cudnn/library.h"
#include "kernels/cuda/device.h"

namespace {

using namespace tandem::kernels;
using cuda::AttentionProblem;

// As cuDNN writes the properties of a device down.
std::string describe(const cuda::DeviceProperties& device) {
  const auto number = [](const char* name, std::int64_t value) {
    return std::string(",\"") + name + "\":" + std::to_string(value);
  };
  const bool isLarge = device.sharedBytesPerBlock > 100 * 1024;
  return "{\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64]" +
         number("deviceVer", 100 * device.major + 10 * device.minor) + number("driverVer", 13000) +
         number("cudaDeviceId", 0) + number("totalGlobalMem", std::int64_t{80} << 30) + number("regsPerBlock", 65536) +
         number("multiProcessorCount", device.multiprocessors) + number("smCountOrigin", 0) + number("warpSize", 32) +
         number("maxSharedMemoryPerBlock", 49152) + number("maxSharedMemoryPerBlockOptin", device.sharedBytesPerBlock) +
         number("oversizedSharedMemoryPerBlock", 0) + number("reservedSharedMemoryPerBlock", 1024) +
         number("maxRegistersPerSM", 65536) + number("maxCtasPerSM", isLarge ? 32 : 24) +
         number("maxThreadsPerBlock", 1024) + number("maxThreadsPerSM", isLarge ? 2048 : 1536) +
         number("pciDeviceId", 0) + number("isTccDriver", 0) + number("supportCoopLaunch", 1) +
         number("smClockRateKHz", 1700000) + number("memClockRateKHz", 2000000) + number("l2CacheSize", 25165824) +
         ",\"deviceName\":\"" + device.name + "\"}";
}

struct Call {
  const char* name;
  std::int64_t kvHeads, headSize, window, documents;  // 12 heads, 4 rows of 1024
};

AttentionProblem problemOf(const Call& call, DType type, bool isBackward) {
  constexpr std::int64_t rows = 4, time = 1024, heads = 12;
  AttentionProblem problem{.isBackward = isBackward,
                           .isPacked = call.documents != rows,
                           .type = type,
                           .sequences = call.documents,
                           .time = time,
                           .tokens = rows * time,
                           .heads = heads,
                           .kvHeads = call.kvHeads,
                           .headSize = call.headSize,
                           .window = call.window,
                           .scale = 0.125f};
  // Queries, keys and values in one fused row, and so their gradients.
  const std::int64_t fused = (heads + 2 * call.kvHeads) * call.headSize, wide = heads * call.headSize;
  problem.strides.fill({time * fused, fused, call.headSize});
  for (const auto tensor : {cuda::output, cuda::gradOutput}) {
    problem.strides[static_cast<std::size_t>(tensor)] = {time * wide, wide, call.headSize};
  }
  return problem;
}

std::string answer(const AttentionProblem& problem, const std::string& device) {
  std::string refusal = cuda::whyNoPlanFor(problem, device).substr(0, 160);
  std::replace(refusal.begin(), refusal.end(), '|', ' ');
  return refusal.empty() ? "yes" : refusal;
}

}  // namespace

int main() {
  const std::string obstacle = cuda::openCudnn();
  if (!obstacle.empty()) {
    std::fprintf(stderr, "cudnn_support: %s\n", obstacle.c_str());
    return 2;
  }
  const cuda::DeviceProperties properties = cuda::useDevice(0);
  const std::string device = describe(properties);
  std::printf("cuDNN %zu, sm_%d%d\n\n| call | type | forward | backward |\n|---|---|---|---|\n", cudnnGetVersion(),
              properties.major, properties.minor);
  for (const Call& call :
       {Call{"rows of one document, heads of 64", 12, 64, 0, 4}, Call{"heads of 80", 12, 80, 0, 4},
        Call{"heads of 96", 12, 96, 0, 4}, Call{"heads of 128", 12, 128, 0, 4}, Call{"heads of 256", 12, 256, 0, 4},
        Call{"grouped queries", 4, 64, 0, 4}, Call{"window of 256", 12, 64, 256, 4},
        Call{"grouped queries, window", 4, 128, 256, 4}, Call{"packed documents", 12, 64, 0, 16},
        Call{"packed, grouped queries", 4, 128, 0, 16}, Call{"packed, window of 256", 12, 64, 256, 16},
        Call{"packed, grouped queries, window", 4, 64, 256, 64}}) {
    for (const DType type : {DType::bf16, DType::f16}) {
      std::printf("| %s | %s | %s | %s |\n", call.name, tandem::base::name(type),
                  answer(problemOf(call, type, false), device).c_str(),
                  answer(problemOf(call, type, true), device).c_str());
      std::fflush(stdout);
    }
  }
  return 0;
}
