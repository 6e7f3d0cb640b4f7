#pragma once
// The device: errors turned into exceptions, what it is, and its memory.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

namespace tandem::kernels::cuda {

// Throws Error of kind device naming `what` (an operator, an allocation...) and CUDA's own text.
void check(cudaError_t result, const std::string& what);

struct DeviceProperties {
  int ordinal = 0;
  std::string name;
  std::string identifier;  // its UUID, in hexadecimal
  int major = 0, minor = 0;
  int multiprocessors = 0;
  std::int64_t sharedBytesPerBlock = 0;  // with opt-in
  bool isIntegrated = false;             // shares its memory with the host (GB10 and other unified-memory machines)
};
// Of the given visible device, which becomes this thread's.
DeviceProperties useDevice(int ordinal);

// Why no device can be used: no driver, an old driver, no device... Empty if one can.
std::string whyNoDevice();

struct MemoryAmount {
  std::int64_t free = 0, total = 0;  // bytes
};
// Of the device. On a unified-memory machine what the host could give (MemAvailable of /proc/meminfo, which counts
// the page cache that cudaMemGetInfo leaves out), less a reserve, since a machine that runs out there freezes.
MemoryAmount memoryAmount(const DeviceProperties& device);

// Memory that operators borrow for the time of a call: grows to the largest request once, then never allocates.
// Belongs to one stream, whose order keeps its users apart; slots keep nested users apart.
class Scratch {
 public:
  Scratch() = default;
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // Grows with each block that moved: pointers from an earlier generation may be gone.
  std::int64_t generation() const { return generation_; }

  // At least that many bytes, aligned to 256, until the next call for the same slot.
  static constexpr int slots = 5;
  void* get(int slot, std::int64_t bytes);
  template <class T>
  T* get(int slot, std::int64_t count) {
    return static_cast<T*>(get(slot, count * static_cast<std::int64_t>(sizeof(T))));
  }

 private:
  struct Block {
    void* data = nullptr;
    std::int64_t bytes = 0;
  };
  Block blocks_[slots];
  std::int64_t generation_ = 0;
};

}  // namespace tandem::kernels::cuda
