#include "apps/shared/device.h"

#include <algorithm>
#include <array>
#include <span>

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

// The flags that ask for ways of our own through the host's memory; empty where none was given.
std::string askedRoutes(const DeviceOptions& options) {
  const std::string route = options.collectives == "library" ? "" : "--collectives " + options.collectives;
  const std::string rounding = options.bf16OnWire ? "--bf16-on-wire" : "";
  return route + (route.empty() || rounding.empty() ? "" : " and ") + rounding;
}

void checkRoutes(const DeviceOptions& options) {
  const comm::Route route = comm::parseRoute(options.collectives);
  if (route == comm::Route::library && options.bf16OnWire) {
    throw Error(ErrorKind::usage,
                "--bf16-on-wire is of our own collectives; choose --collectives ring, halving, hierarchical or auto");
  }
}

// None where the library does it all.
std::unique_ptr<comm::Communicator> routeCollectives(comm::Communicator& world, const DeviceOptions& options) {
  const comm::RouteOptions routes{.route = comm::parseRoute(options.collectives), .bf16OnWire = options.bf16OnWire};
  if (routes.route == comm::Route::library || world.size() == 1) return nullptr;
  auto routed = comm::makeRouted(world, routes);
  TANDEM_LOG(info) << "exchanges through the host's memory: " << routed->description();
  return routed;
}

void chooseExchange(comm::Communicator& world, ChosenDevice& chosen, const DeviceOptions& options) {
  const std::string asked = askedRoutes(options);
  if (options.exchange == "nccl" && !asked.empty()) {
    throw Error(ErrorKind::usage, asked +
                                      " is for exchanges through the host's memory, and --exchange nccl lets NCCL "
                                      "choose its own ways; leave one of them out");
  }
  const std::string reason = whyNotNccl(world, *chosen.backend);
  if (options.exchange == "nccl" || (options.exchange == "auto" && reason.empty())) {
    if (!asked.empty()) {
      TANDEM_LOG(warning) << asked
                          << " has no effect: the ranks' GPUs exchange by NCCL, which chooses its own ways; --exchange "
                             "mpi goes through the host's memory";
    }
    chosen.exchange = runtime::makeNcclCommunicator(world, *chosen.backend, *chosen.stream, options.allowKnownBadNccl);
    return;
  }
  if (options.exchange == "auto") {
    TANDEM_LOG(warning) << "the ranks exchange through the host's memory, not by NCCL: " << reason;
  }
  chosen.routed = routeCollectives(world, options);
  chosen.exchange =
      runtime::makeStagedCommunicator(chosen.routed ? *chosen.routed : world, *chosen.backend, *chosen.stream);
}

constexpr std::array ofGpu = {"attention", "exchange", "tf32", "tune-products", "allow-known-bad-nccl"};
constexpr std::array ofCpu = {"matrix-library"};

// Those that were given, and ask for more than what any device does.
std::vector<std::string> askedOf(std::span<const char* const> names, const CommonOptions& common) {
  std::vector<std::string> asked;
  for (const char* name : names) {
    if (!common.given.contains(name)) continue;
    const std::string& value = common.used.at(name);
    if (value != "false" && value != "auto") asked.push_back("--" + std::string(name));
  }
  return asked;
}

// Where the device was found and not named, one command may be for several machines.
void warnOfIdle(std::span<const char* const> names, const CommonOptions& common, const std::string& inUse) {
  for (const std::string& option : askedOf(names, common)) {
    TANDEM_LOG(warning) << option << " has no effect on " << inUse;
  }
}

std::unique_ptr<kernels::Backend> makeBackend(comm::Communicator& world, const CommonOptions& common,
                                              const DeviceOptions& options) {
  if (common.device != Device::cpu) {
    const std::string reason = whyNotOnAllRanks(world);
    if (reason.empty()) {
      warnOfIdle(ofCpu, common, "the GPU");
      const int ordinal = rankOnHost(world) % kernels::cudaDeviceCount();
      return kernels::makeCudaBackend({.device = ordinal,
                                       .attention = options.attention,
                                       .tf32 = options.tf32,
                                       .tuneProducts = options.tuneProducts});
    }
    if (common.device == Device::cuda) throw Error(ErrorKind::usage, "--device cuda: " + reason);
    TANDEM_LOG(info) << "--device auto takes the CPU: " << reason;
  }
  warnOfIdle(ofGpu, common, "the CPU");
  return kernels::makeCpuBackend({.threads = common.threads, .matrixLibrary = options.matrixLibrary});
}

}  // namespace

void refuseOptionsOfAnotherDevice(const CommonOptions& common) {
  if (common.device == Device::automatic) return;
  const bool onCpu = common.device == Device::cpu;
  const std::vector<std::string> asked = askedOf(onCpu ? std::span<const char* const>(ofGpu) : ofCpu, common);
  if (!asked.empty()) throw Error(ErrorKind::usage, asked.front() + " is for " + (onCpu ? "a GPU" : "the CPU"));
}

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
  app.add_option(
         "--collectives", options.collectives,
         "How sums over ranks and gathered weights travel in the host's memory: auto (measured), library, ring, "
         "halving or hierarchical")
      ->type_name("NAME")
      ->group(group);
  app.add_flag("--bf16-on-wire", options.bf16OnWire,
               "Let the sums of gradients travel rounded to bfloat16 on these ways")
      ->group(group);
  app.add_flag("--tf32", options.tf32, "Let a GPU multiply float32 with 10 bits of mantissa")->group(group);
  app.add_flag("--tune-products", options.tuneProducts,
               "Let a GPU time the algorithms of its matrix products; a resumed run may then round differently")
      ->group(group);
  app.add_flag("--allow-known-bad-nccl", options.allowKnownBadNccl, "Use a version of NCCL that is known to deadlock")
      ->group(group);
}

ChosenDevice chooseDevice(comm::Communicator& world, const CommonOptions& common, const DeviceOptions& options) {
  checkRoutes(options);
  ChosenDevice chosen;
  comm::agreeOn(world, [&] { chosen.backend = makeBackend(world, common, options); });
  chosen.stream = chosen.backend->makeStream();
  chosen.arena = std::make_shared<runtime::Arena>(*chosen.backend);
  if (chosen.backend->isHostMemory()) {
    chosen.routed = routeCollectives(world, options);
  } else if (world.size() > 1) {
    chooseExchange(world, chosen, options);
    TANDEM_LOG(info) << "exchanges between the ranks' GPUs: " << chosen.exchange->description();
  }
  return chosen;
}

}  // namespace tandem::app
