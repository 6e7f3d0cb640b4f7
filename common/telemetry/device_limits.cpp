#include "common/telemetry/device_limits.h"

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "common/base/error.h"
#include "common/base/files.h"
#include "common/base/json.h"

namespace tandem::telemetry {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

void readInto(const json& object, DeviceLimits& limits) {
  object.at("names").get_to(limits.names);
  limits.hasUnifiedMemory = object.value("unified_memory", false);
  const json checks = object.value("limits", json::object());
  for (const auto& [name, pair] : checks.items()) {
    limits.limits[name] = {.pass = pair.at("pass"), .fail = pair.at("fail")};
  }
  if (object.contains("nominal_clock_megahertz")) limits.nominalClockMegahertz = object.at("nominal_clock_megahertz");
  if (object.contains("peak_flops")) {
    const json& peak = object.at("peak_flops");
    limits.peakSource = peak.at("source");
    for (const auto& [type, value] : peak.items()) {
      if (type != "source") limits.peakFlops[type] = value;
    }
  }
  limits.reserveBytes = object.value("reserve_bytes", std::int64_t{0});
  limits.powerCycle = object.value("power_cycle", "");
  const json link = object.value("link", json::object());
  limits.linkParts = link.value("parts", std::vector<std::string>{});
  limits.linkMtu = link.value("mtu", std::int64_t{0});
  limits.linkMegabitsPerSecond = link.value("megabits_per_second", std::int64_t{0});
  limits.linkPartRate = link.value("part_bytes_per_second", 0.0);
}

}  // namespace

DeviceLimits parseDeviceLimits(const std::string& text, const std::string& file) {
  DeviceLimits limits{.file = file};
  const std::string origin = "the limits of devices in '" + file + "' cannot be read: ";
  base::refuseDeepNesting(text, base::ErrorKind::badData, origin);
  try {
    readInto(base::parseJson(text), limits);
  } catch (const json::exception& error) {
    throw base::Error(base::ErrorKind::badData, origin + error.what());
  }
  if (limits.names.empty()) throw base::Error(base::ErrorKind::badData, origin + "names is empty");
  return limits;
}

std::vector<DeviceLimits> readDeviceLimits(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(folder, failed)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  if (failed) {
    throw base::Error(base::ErrorKind::file, "cannot list '" + folder.string() + "': " + failed.message());
  }
  std::ranges::sort(files);
  std::vector<DeviceLimits> all;
  for (const fs::path& file : files) all.push_back(parseDeviceLimits(base::readFile(file), file.string()));
  return all;
}

const DeviceLimits* limitsOf(const std::vector<DeviceLimits>& all, const std::string& deviceName) {
  for (const DeviceLimits& limits : all) {
    for (const std::string& name : limits.names) {
      if (deviceName.find(name) != std::string::npos) return &limits;
    }
  }
  return nullptr;
}

fs::path deviceLimitsFolder() {
  if (const char* named = std::getenv("TANDEM_DEVICES")) return named;
  std::error_code failed;
  const fs::path program = fs::read_symlink("/proc/self/exe", failed);
  for (fs::path folder = program.parent_path(); !failed; folder = folder.parent_path()) {
    for (const char* below : {"share/tandem/data/devices", "data/devices"}) {
      if (fs::is_directory(folder / below)) return folder / below;
    }
    if (folder == folder.root_path()) break;
  }
  return {};
}

std::optional<double> knownPeakFlops(const std::string& description, base::DType storage) {
  const fs::path folder = deviceLimitsFolder();
  if (folder.empty()) return std::nullopt;
  const std::vector<DeviceLimits> all = readDeviceLimits(folder);
  const DeviceLimits* own = limitsOf(all, description);
  const std::string type = storage == base::DType::bf16 ? "bf16" : storage == base::DType::f16 ? "fp16" : "fp32";
  if (own == nullptr || !own->peakFlops.contains(type)) return std::nullopt;
  return own->peakFlops.at(type);
}

}  // namespace tandem::telemetry
