#include "common/sharding/cluster.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <optional>
#include <vector>

#include "common/base/config_text.h"
#include "common/base/error.h"
#include "common/base/files.h"

namespace tandem::sharding {
namespace {

using base::ConfigEntry;
using base::Error;
using base::ErrorKind;

constexpr double giga = 1e9, tera = 1e12, micro = 1e-6, gibi = 1024.0 * 1024.0 * 1024.0;
constexpr int mostNodes = 65536;
constexpr int mostDevices = 1024;  // of a node

// Takes entries by name and remembers which were asked for, so that what is left over is a typing error.
class Description {
 public:
  Description(const std::string& text, const std::string& source)
      : source_(source), entries_(base::parseConfigText(text, source)) {}

  bool has(const std::string& name) const { return std::ranges::find(entries_, name, &ConfigEntry::name) != end(); }
  int lineOf(const std::string& name) const { return std::ranges::find(entries_, name, &ConfigEntry::name)->line; }

  [[noreturn]] void refuse(const std::string& problem, int line = 0) const {
    throw Error(ErrorKind::usage, "the cluster description '" + source_ + "'" +
                                      (line > 0 ? ", line " + std::to_string(line) : "") + ": " + problem);
  }

  // A number from `least` to `most`.
  double number(const std::string& name, double least, double most) {
    known_.push_back(name);
    const auto entry = std::ranges::find(entries_, name, &ConfigEntry::name);
    if (entry == end()) refuse("'" + name + "' is missing");
    double value = 0;
    const std::string text = entry->values.size() == 1 ? entry->values.front() : "";
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool isNumber = error == std::errc() && stop == text.data() + text.size() && std::isfinite(value);
    if (!isNumber || value < least || value > most) {
      refuse("'" + name + "' must be a number from " + shortest(least) + " to " + shortest(most), entry->line);
    }
    return value;
  }
  double number(const std::string& name, double least, double most, double otherwise) {
    known_.push_back(name);
    return has(name) ? number(name, least, most) : otherwise;
  }
  int whole(const std::string& name, int most) {
    const double value = number(name, 1, most);
    if (value != std::floor(value)) refuse("'" + name + "' must be a whole number", lineOf(name));
    return static_cast<int>(value);
  }

  void refuseUnknown() const {
    for (const ConfigEntry& entry : entries_) {
      if (std::ranges::find(known_, entry.name) != known_.end()) continue;
      std::string all;
      for (const std::string& name : known_) {
        if (all.find("'" + name + "'") == std::string::npos) all += (all.empty() ? "'" : ", '") + name + "'";
      }
      refuse("there is no entry '" + entry.name + "'; there are " + all, entry.line);
    }
  }

 private:
  std::vector<ConfigEntry>::const_iterator end() const { return entries_.end(); }
  static std::string shortest(double value) {
    char text[32];
    return std::string(text, std::to_chars(text, text + sizeof text, value).ptr);
  }

  std::string source_;
  std::vector<ConfigEntry> entries_;
  std::vector<std::string> known_;
};

// A link is described where there is something to link, and only there.
Link readLink(Description& description, const std::string& which, int linked, const std::string& without) {
  const std::string rate = which + "-gb-per-second", latency = which + "-latency-microseconds";
  if (linked == 1) {
    for (const std::string& name : {rate, latency}) {
      if (description.has(name))
        description.refuse("'" + name + "' is given, but " + without, description.lineOf(name));
    }
    return {};
  }
  return {.bytesPerSecond = description.number(rate, 1e-3, 1e6) * giga,
          .latencySeconds = description.number(latency, 0, 1e6) * micro};
}

}  // namespace

Cluster parseCluster(const std::string& text, const std::string& source) {
  Description description(text, source);
  Cluster cluster;
  cluster.name = std::filesystem::path(source).stem().string();
  cluster.nodes = description.whole("nodes", mostNodes);
  cluster.devicesPerNode = description.whole("devices-per-node", mostDevices);
  const double memory = description.number("memory-gib", 1e-3, 1e6);
  const double reserve = description.number("reserve-gib", 0, 1e6);
  if (reserve >= memory) {
    description.refuse("'reserve-gib' leaves nothing of 'memory-gib'", description.lineOf("reserve-gib"));
  }
  cluster.memoryBytes = static_cast<std::int64_t>(memory * gibi);
  cluster.reserveBytes = static_cast<std::int64_t>(reserve * gibi);
  cluster.matrixRateF32 = description.number("matrix-tflops-fp32", 1e-6, 1e6) * tera;
  cluster.matrixRateBf16 = description.number("matrix-tflops-bf16", 1e-6, 1e6) * tera;
  cluster.memoryRate = description.number("memory-gb-per-second", 1e-3, 1e6) * giga;
  cluster.launchSeconds = description.number("launch-microseconds", 0, 1e6) * micro;
  cluster.inside = readLink(description, "inside", cluster.devicesPerNode, "a node has one device");
  cluster.between = readLink(description, "between", cluster.nodes, "there is one node");
  cluster.overlap = description.number("overlap", 0, 1, 1);
  description.refuseUnknown();
  return cluster;
}

Cluster readCluster(const std::string& path) { return parseCluster(base::readFile(path), path); }

Link linkOfGroup(const Cluster& cluster, int members, int stride) {
  const int perNode = cluster.devicesPerNode;
  // A node's ranks are consecutive, so a group has this many members on one.
  const int onNode = std::clamp(perNode / stride, 1, members);
  if (onNode == members && perNode % (members * stride) == 0) return cluster.inside;
  // In a ring each group enters and leaves a node once, beside the groups of the node's other ranks.
  const double share = static_cast<double>(onNode) / perNode;
  Link link{.bytesPerSecond = cluster.between.bytesPerSecond * share, .latencySeconds = cluster.between.latencySeconds};
  if (onNode > 1) link.bytesPerSecond = std::min(link.bytesPerSecond, cluster.inside.bytesPerSecond);
  return link;
}

}  // namespace tandem::sharding
