#include "kernels/cuda/device.h"

#include <algorithm>
#include <fstream>

#include "common/base/error.h"

namespace tandem::kernels::cuda {

namespace {

// What is left to the system and to the page cache on a unified-memory machine.
constexpr std::int64_t hostReserve = std::int64_t{16} << 30;

// Of a line "MemAvailable:  12345 kB"; -1 when there is none.
std::int64_t meminfoBytes(const std::string& field) {
  std::ifstream file("/proc/meminfo");
  std::string name;
  std::int64_t kilobytes = 0;
  std::string unit;
  while (file >> name >> kilobytes) {
    std::getline(file, unit);
    if (name == field + ":") return kilobytes * 1024;
  }
  return -1;
}

}  // namespace

void check(cudaError_t result, const std::string& what) {
  if (result == cudaSuccess) return;
  throw base::Error(base::ErrorKind::device,
                    what + ": " + cudaGetErrorName(result) + ": " + cudaGetErrorString(result));
}

DeviceProperties useDevice(int ordinal) {
  check(cudaSetDevice(ordinal), "taking CUDA device " + std::to_string(ordinal));
  cudaDeviceProp given{};
  check(cudaGetDeviceProperties(&given, ordinal), "asking for the properties of a CUDA device");
  DeviceProperties device;
  device.ordinal = ordinal;
  device.name = given.name;
  for (const char byte : given.uuid.bytes) {
    constexpr char digits[] = "0123456789abcdef";
    const auto value = static_cast<unsigned char>(byte);
    device.identifier += {digits[value >> 4], digits[value & 15]};
  }
  device.major = given.major;
  device.minor = given.minor;
  device.multiprocessors = given.multiProcessorCount;
  device.sharedBytesPerBlock = static_cast<std::int64_t>(given.sharedMemPerBlockOptin);
  device.isIntegrated = given.integrated != 0;
  return device;
}

std::string whyNoDevice() {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result != cudaSuccess) {
    cudaGetLastError();  // forgets it
    if (result == cudaErrorInsufficientDriver) {
      int driver = 0;
      if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
        return "no NVIDIA driver is loaded (libcuda.so.1)";
      return "the NVIDIA driver serves CUDA " + std::to_string(driver / 1000) + "." +
             std::to_string(driver % 1000 / 10) + ", this build needs CUDA " + std::to_string(CUDART_VERSION / 1000);
    }
    return std::string(cudaGetErrorName(result)) + ": " + cudaGetErrorString(result);
  }
  return count > 0 ? "" : "the driver shows no device (see nvidia-smi and CUDA_VISIBLE_DEVICES)";
}

MemoryAmount memoryAmount(const DeviceProperties& device) {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "asking for the device's free memory");
  MemoryAmount amount{static_cast<std::int64_t>(free), static_cast<std::int64_t>(total)};
  if (!device.isIntegrated) return amount;
  const std::int64_t available = meminfoBytes("MemAvailable");
  if (available >= 0) amount.free = std::max<std::int64_t>(0, available - hostReserve);
  return amount;
}

Scratch::~Scratch() {
  for (const Block& block : blocks_) cudaFree(block.data);
}

void* Scratch::get(int slot, std::int64_t bytes) {
  TANDEM_ASSERT(slot >= 0 && slot < slots, "there is no scratch slot " + std::to_string(slot));
  Block& block = blocks_[slot];
  if (bytes <= block.bytes) return block.data;
  // Freeing waits until the device is done with it.
  check(cudaFree(block.data), "releasing scratch of a CUDA operator");
  block = Block{};
  const cudaError_t result = cudaMalloc(&block.data, static_cast<std::size_t>(bytes));
  if (result != cudaSuccess) {
    cudaGetLastError();  // forgets it
    block.data = nullptr;
    check(result, "no memory for " + std::to_string(bytes) +
                      " bytes of scratch of a CUDA operator; use a smaller --micro-batch");
  }
  block.bytes = bytes;
  ++generation_;
  return block.data;
}

}  // namespace tandem::kernels::cuda
