// Are all nodes the same, and is nothing on them that is known to fail?

#include <array>
#include <map>
#include <optional>
#include <set>

#include "common/comm/nccl_fault.h"
#include "common/telemetry/detail/checklist.h"

namespace tandem::telemetry::detail {
namespace {

struct VersionRule {
  const char* name;
  Verdict onMismatch;  // noGo where both sides must speak the same
  const char* advice;
};
constexpr std::array<VersionRule, 11> rules{{
    {"Tandem", Verdict::noGo, "install the same build on all nodes"},
    {"MPI", Verdict::noGo, "install the same MPI on all nodes"},
    {"HDF5", Verdict::noGo, "install the same HDF5 on all nodes"},
    {"NCCL", Verdict::noGo, "install the same NCCL on all nodes"},
    {"CUDA", Verdict::noGo, "install the same build on all nodes"},
    {"driver", Verdict::warning, "bring the drivers to one version"},
    {"operating system", Verdict::warning, "bring the nodes to one system, or rule it out when something differs"},
    {"kernel", Verdict::warning, "bring the nodes to one kernel, or rule it out when something differs"},
    {"architecture", Verdict::warning, "results of different processors differ in their last bits"},
    {"processor", Verdict::warning, "the slowest kind sets the pace; leave it out, or give each its share"},
    {"attention", Verdict::warning, "install the same cuDNN on all nodes, or name a path: --attention"},
}};

using HostsByText = std::map<std::string, std::set<std::string>>;

std::string spelledOut(const HostsByText& hostsByText) {
  std::string text;
  for (const auto& [value, hosts] : hostsByText) {
    text += text.empty() ? "" : "; ";
    text += value + " on " + *hosts.begin();
    if (hosts.size() > 1) text += " and " + std::to_string(hosts.size() - 1) + " more";
  }
  return text;
}

void compare(const std::string& subject, const HostsByText& found, Verdict onMismatch, const std::string& advice,
             std::vector<Check>& checks) {
  if (found.empty()) return;
  const bool same = found.size() == 1;
  checks.push_back({.subject = subject,
                    .place = "all nodes",
                    .verdict = same ? Verdict::go : onMismatch,
                    .value = same ? found.begin()->first : spelledOut(found),
                    .limit = "the same on all nodes",
                    .advice = same ? "" : advice});
}

void judgeHashes(const Evidence& evidence, std::vector<Check>& checks) {
  std::map<std::string, HostsByText> byFile;
  for (const RankFacts& rank : evidence.ranks) {
    for (const auto& [file, hash] : rank.hashes) byFile[file][hash].insert(rank.host);
  }
  for (const auto& [file, found] : byFile) {
    compare("content of " + file, found, Verdict::noGo, "copy the same file to all nodes, or use a shared one", checks);
  }
}

void judgeNccl(const Evidence& evidence, std::vector<Check>& checks) {
  for (const RankFacts* rank : firstOfEachHost(evidence.ranks)) {
    const auto version = rank->versions.find("NCCL"), architecture = rank->versions.find("architecture");
    if (version == rank->versions.end() || architecture == rank->versions.end()) continue;
    const std::optional<comm::NcclFault> fault = comm::ncclFault(version->second, architecture->second);
    if (!fault) continue;
    checks.push_back({.subject = "NCCL version",
                      .place = rank->host,
                      .verdict = fault->deadlocks ? Verdict::noGo : Verdict::warning,
                      .value = version->second + " on aarch64",
                      .limit = fault->what,
                      .advice = "install NCCL 2.29.3 or newer, best 2.31.2"});
  }
}

}  // namespace

void judgeVersions(const Evidence& evidence, std::vector<Check>& checks) {
  for (const VersionRule& rule : rules) {
    HostsByText found;
    for (const RankFacts& rank : evidence.ranks) {
      const auto version = rank.versions.find(rule.name);
      if (version != rank.versions.end()) found[version->second].insert(rank.host);
    }
    compare(rule.name, found, rule.onMismatch, rule.advice, checks);
  }
  judgeNccl(evidence, checks);
  judgeHashes(evidence, checks);
}

}  // namespace tandem::telemetry::detail
