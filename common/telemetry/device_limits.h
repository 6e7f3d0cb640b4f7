#pragma once
// What a healthy device of a known kind reaches: data/devices/*.json, a file a kind. A device that no file names is
// judged against the other ranks only.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/dtype.h"

namespace tandem::telemetry {

// At or beyond `pass` is go, short of `fail` is no-go, in between is a warning. Whether more or less is better belongs
// to what is limited (see readings.h).
struct Limit {
  double pass = 0, fail = 0;
};

struct DeviceLimits {
  std::string file;                // where it stands, for reports
  std::vector<std::string> names;  // a device whose name contains one of these is of the kind
  bool hasUnifiedMemory = false;   // shares its memory with the host
  std::map<std::string, Limit> limits;
  std::optional<double> nominalClockMegahertz;  // at which the limits hold
  std::map<std::string, double> peakFlops;      // by storage type: "bf16"
  std::string peakSource;
  std::int64_t reserveBytes = 0;  // to leave free beside the plan
  // A port that shows up as several interfaces, each a part of its rate: the beginnings of their names.
  std::vector<std::string> linkParts;
  std::int64_t linkMtu = 0;                // recommended; 0: no matter
  std::int64_t linkMegabitsPerSecond = 0;  // that each reports
  double linkPartRate = 0;                 // bytes per second that one part alone carries; 0: unknown
  std::string powerCycle;                  // how to take all power from it
};

// Throws Error of kind badData for a file that is none, naming it and the field.
DeviceLimits parseDeviceLimits(const std::string& json, const std::string& file);
// All of a folder, in the order of the files' names.
std::vector<DeviceLimits> readDeviceLimits(const std::filesystem::path& folder);
// Those of the device; null when it is unknown.
const DeviceLimits* limitsOf(const std::vector<DeviceLimits>& all, const std::string& deviceName);

// data/devices beside this program: installed (../share/tandem/data/devices) or in a tree above it. The environment's
// TANDEM_DEVICES wins. Empty when there is none.
std::filesystem::path deviceLimitsFolder();

// The peak that the maker gives a device whose description holds its name, for products of a storage type, in
// operations per second; nothing where no file names it.
std::optional<double> knownPeakFlops(const std::string& description, base::DType storage);

}  // namespace tandem::telemetry
