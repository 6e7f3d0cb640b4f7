#pragma once
// What preflight finds out before it judges. A fact that could not be had is absent.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/telemetry/host_sensors.h"

namespace tandem::telemetry {

// Names of readings; rates are per second, in operations or bytes.
namespace reading {
inline constexpr const char* matrixRate = "matrix_rate";           // sustained: the median of the last half of the load
inline constexpr const char* matrixRateHeld = "matrix_rate_held";  // the end of the load, as a part of its beginning
inline constexpr const char* gemvBandwidth = "gemv_bandwidth";     // matrix times vector: bytes of the matrix
inline constexpr const char* gemvToCopy = "gemv_to_copy";
inline constexpr const char* readBandwidth = "read_bandwidth";
inline constexpr const char* copyBandwidth = "copy_bandwidth";  // bytes read and bytes written
inline constexpr const char* attentionRate = "attention_rate";  // causal, forward: half of 4 batch heads T^2 headSize
inline constexpr const char* deviceClock = "device_clock";      // MHz, under load, as all below
inline constexpr const char* devicePower = "device_power";      // W
inline constexpr const char* deviceTemperature = "device_temperature";  // degrees, the highest
inline constexpr const char* deviceUtilisation = "device_utilisation";
inline constexpr const char* thermalSlowdown = "thermal_slowdown";  // share of the time
inline constexpr const char* hostClock = "host_clock";              // MHz
inline constexpr const char* hostTemperature = "host_temperature";
inline constexpr const char* hostThrottle = "host_throttle";  // share of the processors' time slowed down for heat
inline constexpr const char* stolen = "stolen";               // share of the processors' time given to other guests
inline constexpr const char* available = "available_bytes";   // memory of the host
inline constexpr const char* deviceFree = "device_free_bytes";
inline constexpr const char* planned = "planned_bytes";  // where it computes
inline constexpr const char* plannedHost =
    "planned_host_bytes";  // beside that on the host: the copy that is being saved
inline constexpr const char* memoryTotal = "memory_total_bytes";
inline constexpr const char* swap = "swap_bytes";
inline constexpr const char* diskFree = "disk_free_bytes";
inline constexpr const char* diskNeeded =
    "disk_needed_bytes";  // all checkpoints that are kept, and the one being written
inline constexpr const char* diskRate = "disk_write_rate";
inline constexpr const char* clockSkew = "clock_skew";  // s, against rank 0
}  // namespace reading

struct RankFacts {
  int rank = 0;
  std::string host;
  std::string device;                           // its name; empty where the processors compute
  std::string processor;                        // one line on what computes, of the backend
  bool sharesMemory = true;                     // with the host: processors, and devices with unified memory
  std::string whyNoSensors;                     // of the device; empty when there are some, or no device
  std::map<std::string, std::string> versions;  // "MPI" -> "Open MPI 4.1.4"
  std::map<std::string, std::string> hashes;    // of the program and of files, by name
  std::map<std::string, double> readings;
  std::optional<std::uint64_t> throttleReasons;  // all that were seen under load
  std::vector<NetworkInterface> interfaces;

  std::optional<double> get(const std::string& name) const;
  void set(const std::string& name, const std::optional<double>& value);
};

struct PairRate {
  int first = 0, second = 0;  // ranks
  std::int64_t bytes = 0;     // of a message
  double seconds = 0;         // one way
};
struct GatherRate {
  std::int64_t bytes = 0;     // that every rank receives
  double bytesPerSecond = 0;  // bus bandwidth: the part that comes from others, by time
};
struct LinkFacts {
  std::string transport;  // "NCCL 2.29.3"
  bool isOfDevices = false;
  std::vector<PairRate> pairs;
  std::vector<GatherRate> gathers;
};

// Some steps of the real run, and what follows from them.
struct TrialFacts {
  std::int64_t steps = 0, stepsOfTheRun = 0;
  bool finite = true;
  double stepSeconds = 0;  // median, without the first ones
  double waitShare = 0, communicationShare = 0, dataShare = 0;
  double tokensPerSecond = 0;
  double modelFlopsPerSecond = 0;
  std::optional<double> mfu;
  std::string mfuOf;             // what the share is of
  double checkpointSeconds = 0;  // that a save holds up the steps
  std::int64_t checkpoints = 0;  // of the whole run
  std::optional<double> joules;  // of all ranks in a step, devices or packages
  std::string joulesOf;
  double projectedSeconds() const;
};

struct Evidence {
  std::vector<RankFacts> ranks;
  LinkFacts links;
  std::optional<TrialFacts> trial;
  std::optional<double> lockedClockMegahertz;  // as the owner has set it (nvidia-smi -lgc)
};

std::string toJson(const RankFacts& facts);
RankFacts parseRankFacts(const std::string& json);
std::string toJson(const LinkFacts& facts);
std::string toJson(const TrialFacts& facts);

}  // namespace tandem::telemetry
