// Does what connects the ranks carry what it should: both halves of a port up, one size of packets on both ends, the
// rate of its kind?

#include <algorithm>
#include <map>
#include <set>

#include "common/base/units.h"
#include "common/telemetry/detail/checklist.h"

namespace tandem::telemetry::detail {
namespace {

constexpr Limit pairLimit{.pass = 0.8, .fail = 0.5};  // of the median pair

bool severalHosts(const Evidence& evidence) { return firstOfEachHost(evidence.ranks).size() > 1; }

// Half of a port that is down takes half of the rate, and no error is reported anywhere.
void judgeParts(const RankFacts& first, const DeviceLimits& limits, std::vector<Check>& checks) {
  if (limits.linkParts.empty() || first.interfaces.empty()) return;
  std::string up, down;
  for (const std::string& part : limits.linkParts) {
    const bool isUp = std::ranges::any_of(
        first.interfaces, [&](const NetworkInterface& one) { return one.isUp && one.name.starts_with(part); });
    std::string& list = isUp ? up : down;
    list += (list.empty() ? "" : ", ") + part + "*";
  }
  const Verdict verdict = down.empty() ? Verdict::go : up.empty() ? Verdict::warning : Verdict::noGo;
  checks.push_back({.subject = "parts of the link",
                    .place = first.host,
                    .verdict = verdict,
                    .value = (up.empty() ? "none" : up) + " up" + (down.empty() ? "" : ", " + down + " down"),
                    .limit = "all up: each carries a part of the rate",
                    .advice = verdict == Verdict::go ? ""
                              : up.empty() ? "plug the cable between the units, or expect the rate of the other network"
                                           : "bring the other half up, with an address on a subnet of its own "
                                             "(docs/spark.md), on both ends"});
}

bool isPartOfLink(const NetworkInterface& one, const DeviceLimits& limits) {
  return std::ranges::any_of(limits.linkParts, [&](const std::string& part) { return one.name.starts_with(part); });
}

// What a known link should say of itself.
void judgeLinkSettings(const RankFacts& first, const DeviceLimits& limits, std::vector<Check>& checks) {
  for (const NetworkInterface& one : first.interfaces) {
    if (!one.isUp || !isPartOfLink(one, limits)) continue;
    if (one.mtu && limits.linkMtu > 0 && *one.mtu < limits.linkMtu) {
      checks.push_back(
          {"MTU of " + one.name, first.host, Verdict::warning, std::to_string(*one.mtu), std::to_string(limits.linkMtu),
           "set it on both ends; it falls back after a firmware reset, so set it where it lasts (netplan)"});
    }
    if (one.megabitsPerSecond && *one.megabitsPerSecond < limits.linkMegabitsPerSecond) {
      checks.push_back({"rate of " + one.name, first.host, Verdict::warning,
                        std::to_string(*one.megabitsPerSecond) + " Mbit/s",
                        std::to_string(limits.linkMegabitsPerSecond) + " Mbit/s",
                        "look at the cable; unplug and plug it on both ends"});
    }
  }
}

// Packets of one end that the other end drops: small messages pass, large ones hang.
void judgeMtu(const Evidence& evidence, std::vector<Check>& checks) {
  std::map<std::string, std::map<std::int64_t, std::set<std::string>>> hostsByMtu;  // by interface
  for (const RankFacts* first : firstOfEachHost(evidence.ranks)) {
    for (const NetworkInterface& one : first->interfaces) {
      if (one.isUp && one.mtu) hostsByMtu[one.name][*one.mtu].insert(first->host);
    }
  }
  for (const auto& [name, found] : hostsByMtu) {
    if (found.size() < 2) continue;
    std::string text;
    for (const auto& [mtu, hosts] : found) {
      text += (text.empty() ? "" : "; ") + std::to_string(mtu) + " on " + *hosts.begin();
    }
    checks.push_back({"MTU of " + name, "all nodes", Verdict::noGo, text, "the same on both ends",
                      "set one MTU on both ends: packets of the larger size are lost"});
  }
}

void judgeGather(const Evidence& evidence, const DeviceLimits* limits, std::vector<Check>& checks) {
  if (evidence.links.gathers.empty()) return;
  const GatherRate& largest = *std::ranges::max_element(evidence.links.gathers, {}, &GatherRate::bytes);
  Check check{.subject = "all-gather",
              .place = "all ranks",
              .verdict = Verdict::unknown,
              .value = bandwidthText(largest.bytesPerSecond) + " at " + base::formatBytes(largest.bytes) + " by " +
                       evidence.links.transport,
              .limit = "none known for these links",
              .advice = ""};
  const bool isKnown = limits != nullptr && evidence.links.isOfDevices && severalHosts(evidence);
  const char* name = evidence.ranks.size() == 2 ? "gather_bandwidth_pair" : "gather_bandwidth_ring";
  const auto limit = isKnown ? limits->limits.find(name) : std::map<std::string, Limit>::const_iterator{};
  if (isKnown && limit != limits->limits.end()) {
    check.verdict = verdictOf(largest.bytesPerSecond, limit->second, Better::more);
    check.limit =
        "at least " + bandwidthText(limit->second.pass) + ", no-go below " + bandwidthText(limit->second.fail);
    if (check.verdict == Verdict::noGo) {
      check.advice =
          "about 3 GB/s: NCCL_IB_HCA does not name all adapters, or NCCL took another network; see docs/spark.md";
    } else if (evidence.ranks.size() == 2 && largest.bytesPerSecond <= limits->linkPartRate) {
      check.verdict = Verdict::noGo;
      check.limit = "more than the " + bandwidthText(limits->linkPartRate) + " of one half of the port";
      check.advice =
          "one half of the port is idle (NCCL_IB_HCA is to name all adapters) or wired x2 by old firmware; see "
          "docs/spark.md";
    } else if (check.verdict == Verdict::warning) {
      check.advice = "MTU 9000 on both ends gives a fifth more; see docs/spark.md";
    }
  }
  checks.push_back(check);
}

// The largest messages of each pair, one pair against the others.
void judgePairs(const Evidence& evidence, std::vector<Check>& checks) {
  std::int64_t largest = 0;
  for (const PairRate& pair : evidence.links.pairs) largest = std::max(largest, pair.bytes);
  std::vector<const PairRate*> pairs;
  for (const PairRate& pair : evidence.links.pairs) {
    if (pair.bytes == largest && pair.seconds > 0) pairs.push_back(&pair);
  }
  if (pairs.empty()) return;
  std::ranges::sort(pairs, {}, &PairRate::seconds);
  const double median = static_cast<double>(largest) / pairs[pairs.size() / 2]->seconds;
  auto rank = [&](int number) { return placeOf(evidence.ranks.at(static_cast<std::size_t>(number))); };
  const PairRate& slowest = *pairs.back();
  const double rate = static_cast<double>(largest) / slowest.seconds;
  const Verdict verdict = pairs.size() < 3 ? Verdict::go : verdictOf(rate / median, pairLimit, Better::more);
  checks.push_back({.subject = "messages between pairs",
                    .place = "all ranks",
                    .verdict = verdict,
                    .value = bandwidthText(median) + " by the median; slowest " + bandwidthText(rate) + " between " +
                             rank(slowest.first) + " and " + rank(slowest.second),
                    .limit = pairs.size() < 3 ? "too few pairs to compare" : "the slowest at least 0.8 x the median",
                    .advice = verdict == Verdict::go ? "" : "look at the cable and port between these two"});
}

}  // namespace

void judgeLinks(const Evidence& evidence, const std::vector<DeviceLimits>& limits, std::vector<Check>& checks) {
  if (severalHosts(evidence)) {
    for (const RankFacts* first : firstOfEachHost(evidence.ranks)) {
      const DeviceLimits* own = limitsOf(limits, first->device);
      if (own == nullptr) continue;
      judgeParts(*first, *own, checks);
      judgeLinkSettings(*first, *own, checks);
    }
    judgeMtu(evidence, checks);
  }
  judgeGather(evidence, evidence.ranks.empty() ? nullptr : limitsOf(limits, evidence.ranks.front().device), checks);
  judgePairs(evidence, checks);
}

}  // namespace tandem::telemetry::detail
