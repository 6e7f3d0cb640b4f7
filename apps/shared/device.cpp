#include "apps/shared/device.h"

#include <algorithm>

#include "common/base/error.h"
#include "common/base/log.h"
#include "common/comm/nccl_group.h"
#include "common/comm/routed.h"
#include "common/runtime/device_communicator.h"

namespace tandem::app {
namespace {

using base::Error;
using base::ErrorKind;

// "rank 2 (host b): no NVIDIA driver is loaded", of the first rank that cannot use CUDA; empty when all can.
std::string whyNotOnAllRanks(comm::Communicator& world) {
  const std::vector<std::string> hosts = comm::allGatherTexts(world, base::identity().host);
  const std::vector<std::string> reasons = comm::allGatherTexts(world, kernels::whyNoCuda());
  for (std::size_t rank = 0; rank < reasons.size(); ++rank) {
    if (reasons[rank].empty()) continue;
    return world.size() == 1 ? reasons[rank]
                             : "rank " + std::to_string(rank) + " (host " + hosts[rank] + "): " + reasons[rank];
  }
  return "";
}

// Number of this rank among those of its host.
int rankOnHost(comm::Communicator& world) {
  const std::vector<std::string> hosts = comm::allGatherTexts(world, base::identity().host);
  return static_cast<int>(std::count(hosts.begin(), hosts.begin() + world.rank(), base::identity().host));
}

bool isDeviceShared(comm::Communicator& world, const kernels::Backend& backend) {
  std::vector<std::string> devices =
      comm::allGatherTexts(world, base::identity().host + " " + backend.deviceIdentifier());
  std::sort(devices.begin(), devices.end());
  return std::adjacent_find(devices.begin(), devices.end()) != devices.end();
}

std::string whyNotNccl(comm::Communicator& world, const kernels::Backend& backend) {
  const bool shared = isDeviceShared(world, backend);
  if (!comm::whyNoNccl().empty()) return comm::whyNoNccl();
  return shared ? "ranks share a GPU, which NCCL does not serve" : "";
}

std::unique_ptr<comm::Communicator> chooseExchange(comm::Communicator& world, const ChosenDevice& chosen,
                                                   const DeviceOptions& options) {
  const std::string reason = whyNotNccl(world, *chosen.backend);
  if (options.exchange == "nccl" || (options.exchange == "auto" && reason.empty())) {
    return runtime::makeNcclCommunicator(world, *chosen.backend, *chosen.stream, options.allowKnownBadNccl);
  }
  if (options.exchange == "auto") {
    TANDEM_LOG(warning) << "the ranks exchange through the host's memory, not by NCCL: " << reason;
  }
  return runtime::makeStagedCommunicator(chosen.routed ? *chosen.routed : world, *chosen.backend, *chosen.stream);
}

// None where the library does it all.
std::unique_ptr<comm::Communicator> routeCollectives(comm::Communicator& world, const DeviceOptions& options) {
  const comm::RouteOptions routes{.route = comm::parseRoute(options.collectives), .bf16OnWire = options.bf16OnWire};
  if (routes.route == comm::Route::library && routes.bf16OnWire) {
    throw Error(ErrorKind::usage,
                "--bf16-on-wire is of our own collectives; choose --collectives ring, halving, hierarchical or auto");
  }
  if (routes.route == comm::Route::library || world.size() == 1) return nullptr;
  return comm::makeRouted(world, routes);
}

std::unique_ptr<kernels::Backend> makeBackend(comm::Communicator& world, const CommonOptions& common,
                                              const DeviceOptions& options) {
  if (common.device != Device::cpu) {
    const std::string reason = whyNotOnAllRanks(world);
    if (reason.empty()) {
      const int ordinal = rankOnHost(world) % kernels::cudaDeviceCount();
      return kernels::makeCudaBackend({.device = ordinal,
                                       .attention = options.attention,
                                       .tf32 = options.tf32,
                                       .tuneProducts = options.tuneProducts});
    }
    if (common.device == Device::cuda) throw Error(ErrorKind::usage, "--device cuda: " + reason);
    TANDEM_LOG(info) << "--device auto takes the CPU: " << reason;
  }
  return kernels::makeCpuBackend({.threads = common.threads, .matrixLibrary = options.matrixLibrary});
}

}  // namespace

void declareDeviceOptions(CLI::App& app, DeviceOptions& options) {
  const std::string group = "Device options";
  app.add_option("--matrix-library", options.matrixLibrary, "Of the CPU: auto, onednn or openblas")
      ->type_name("NAME")
      ->group(group);
  app.add_option("--attention", options.attention, "Kernels of a GPU's attention: auto, mma or reference")
      ->type_name("NAME")
      ->group(group);
  app.add_option("--exchange", options.exchange, "Between ranks' GPUs: by NCCL, or by MPI through the host")
      ->check(CLI::IsMember({"auto", "nccl", "mpi"}))
      ->group(group);
  app.add_option("--collectives", options.collectives,
                 "How gradients and weights travel in the host's memory: auto (measured), library, ring, halving or "
                 "hierarchical")
      ->type_name("NAME")
      ->group(group);
  app.add_flag("--bf16-on-wire", options.bf16OnWire, "Let float32 sums of these travel rounded to bfloat16")
      ->group(group);
  app.add_flag("--tf32", options.tf32, "Let a GPU multiply float32 with 10 bits of mantissa")->group(group);
  app.add_flag("--tune-products", options.tuneProducts,
               "Let a GPU time the algorithms of its matrix products; a resumed run may then round differently")
      ->group(group);
  app.add_flag("--allow-known-bad-nccl", options.allowKnownBadNccl, "Use a version of NCCL that is known to deadlock")
      ->group(group);
}

ChosenDevice chooseDevice(comm::Communicator& world, const CommonOptions& common, const DeviceOptions& options) {
  ChosenDevice chosen;
  comm::agreeOn(world, [&] { chosen.backend = makeBackend(world, common, options); });
  chosen.stream = chosen.backend->makeStream();
  chosen.arena = std::make_shared<runtime::Arena>(*chosen.backend);
  chosen.routed = routeCollectives(world, options);
  if (chosen.backend->isHostMemory() || world.size() == 1) return chosen;
  chosen.exchange = chooseExchange(world, chosen, options);
  TANDEM_LOG(info) << "exchanges between the ranks' GPUs: " << chosen.exchange->description();
  return chosen;
}

}  // namespace tandem::app
