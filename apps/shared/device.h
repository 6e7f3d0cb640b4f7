#pragma once
// From --device and what belongs to it to the backend that a program computes on.

#include <memory>
#include <string>

#include "apps/shared/program.h"
#include "common/train/device.h"
#include "kernels/backend.h"

namespace tandem::app {

struct DeviceOptions {
  std::string matrixLibrary = "auto";   // of the CPU
  std::string collectives = "library";  // of the host's memory
  bool bf16OnWire = false;
  std::string attention = "auto";  // the rest: of CUDA
  std::string exchange = "auto";
  bool tf32 = false;
  bool tuneProducts = false;
  bool allowKnownBadNccl = false;
};

void declareDeviceOptions(CLI::App& app, DeviceOptions& options);

// Throws Error of kind usage for an option of the device that --device does not name.
void refuseOptionsOfAnotherDevice(const CommonOptions& common);

// Members are in the order of their making: what comes later uses what comes before.
struct ChosenDevice {
  std::unique_ptr<kernels::Backend> backend;
  std::unique_ptr<kernels::Stream> stream;
  std::shared_ptr<runtime::Arena> arena;
  std::unique_ptr<comm::Communicator> routed;    // of the host's memory, where its collectives are not the library's
  std::unique_ptr<comm::Communicator> exchange;  // none on a CPU, or for one rank

  train::Device device() const { return {*backend, *stream, arena, exchange ? exchange.get() : routed.get()}; }
};

// What this rank computes on, the same kind on all ranks; logs what was taken, and why. Ranks of a host take its GPUs
// in turn. Collective. Throws Error of kind usage when a GPU is demanded and a rank has none.
ChosenDevice chooseDevice(comm::Communicator& world, const CommonOptions& common, const DeviceOptions& options);

}  // namespace tandem::app
