// Do the nodes have what the run will take: memory, disk, time, their own processors?

#include <algorithm>
#include <cmath>

#include "common/base/units.h"
#include "common/telemetry/detail/checklist.h"

namespace tandem::telemetry::detail {
namespace {

constexpr Limit skewLimit{.pass = 1, .fail = 60};  // s; logs stop making sense, then tickets and file times do
constexpr Limit stolenLimit{.pass = 0.02, .fail = 0.2};
constexpr Limit hostThrottleLimit{.pass = 0.01, .fail = 0.2};
constexpr double reservedPart = 0.05;  // of a host's memory, where no file of limits says better
constexpr double mostReserved = 16e9;

std::string bytesText(double bytes) { return base::formatBytes(static_cast<std::int64_t>(bytes)); }

void judgeClock(const RankFacts& rank, std::vector<Check>& checks) {
  const std::optional<double> skew = rank.get(reading::clockSkew);
  if (!skew) return;
  const Verdict verdict = verdictOf(std::abs(*skew), skewLimit, Better::less);
  checks.push_back({.subject = "clock against rank 0",
                    .place = rank.host,
                    .verdict = verdict,
                    .value = numberText(*skew * 1e3, "ms", 1),
                    .limit = "within 1 s",
                    .advice = verdict == Verdict::go ? "" : "let the nodes keep time together (chrony or ntpd)"});
}

// What is left of the host's memory once all its ranks have taken theirs.
void judgeMemory(const RankFacts& first, const Evidence& evidence, const DeviceLimits* limits,
                 std::vector<Check>& checks) {
  const std::optional<double> available = first.get(reading::available);
  if (!available) {
    checks.push_back(
        {"memory of the host", first.host, Verdict::unknown, "not reported", "the plan and a reserve", ""});
    return;
  }
  double planned = 0;
  bool isPlanned = false;
  for (const RankFacts& rank : evidence.ranks) {
    if (rank.host != first.host) continue;
    isPlanned = isPlanned || rank.get(reading::planned).has_value();
    if (rank.sharesMemory) planned += rank.get(reading::planned).value_or(0);
    planned += rank.get(reading::plannedHost).value_or(0);
  }
  const double reserve = limits != nullptr && limits->reserveBytes > 0
                             ? static_cast<double>(limits->reserveBytes)
                             : std::min(mostReserved, reservedPart * first.get(reading::memoryTotal).value_or(0));
  const bool fits = *available >= planned + reserve;
  checks.push_back({.subject = "memory of the host",
                    .place = first.host,
                    .verdict = fits ? Verdict::go : Verdict::noGo,
                    .value = bytesText(*available) + " available",
                    .limit = (isPlanned ? bytesText(planned) + " planned and " : "") + bytesText(reserve) + " to spare",
                    .advice = fits ? ""
                                   : "end what else runs there; or plan less: a smaller --micro-batch, --recompute "
                                     "full, more ranks"});
}

void judgeSwap(const RankFacts& first, const DeviceLimits* limits, std::vector<Check>& checks) {
  const std::optional<double> swap = first.get(reading::swap);
  if (!swap || limits == nullptr || !limits->hasUnifiedMemory) return;
  const bool off = *swap <= 0;
  checks.push_back({.subject = "swap",
                    .place = first.host,
                    .verdict = off ? Verdict::go : Verdict::warning,
                    .value = off ? "off" : bytesText(*swap),
                    .limit = "off, where device and host share memory",
                    .advice = off ? "" : "swapoff -a: a unit that begins to swap stands still instead of failing"});
}

void judgeDeviceMemory(const RankFacts& rank, std::vector<Check>& checks) {
  if (rank.device.empty() || rank.sharesMemory) return;
  const std::optional<double> free = rank.get(reading::deviceFree), planned = rank.get(reading::planned);
  if (!planned) return;
  Check check{
      "memory of the device", placeOf(rank), Verdict::unknown, "not reported", bytesText(*planned) + " planned", ""};
  if (free) {
    const bool fits = *free >= *planned;
    check.verdict = fits ? Verdict::go : Verdict::noGo;
    check.value = bytesText(*free) + " free";
    if (!fits) check.advice = "end what else runs there; or plan less: a smaller --micro-batch, --recompute full";
  }
  checks.push_back(check);
}

void judgeDisk(const RankFacts& first, std::vector<Check>& checks) {
  const std::optional<double> free = first.get(reading::diskFree), needed = first.get(reading::diskNeeded);
  if (!free) return;
  const bool fits = *free >= needed.value_or(0);
  const std::optional<double> rate = first.get(reading::diskRate);
  checks.push_back({.subject = "checkpoint folder",
                    .place = first.host,
                    .verdict = fits ? Verdict::go : Verdict::noGo,
                    .value = bytesText(*free) + " free, writes " + (rate ? bandwidthText(*rate) : "unknown"),
                    .limit = needed ? bytesText(*needed) + " of checkpoints" : "",
                    .advice = fits ? "" : "free space, or a smaller --keep, or another --output"});
}

void judgeShare(const RankFacts& first, const char* name, const char* subject, const Limit& limit, const char* advice,
                std::vector<Check>& checks) {
  const std::optional<double> share = first.get(name);
  if (!share) return;
  const Verdict verdict = verdictOf(*share, limit, Better::less);
  checks.push_back({.subject = subject,
                    .place = first.host,
                    .verdict = verdict,
                    .value = shareText(*share),
                    .limit = "at most " + shareText(limit.pass) + ", no-go above " + shareText(limit.fail),
                    .advice = verdict == Verdict::go ? "" : advice});
}

}  // namespace

void judgeHosts(const Evidence& evidence, const std::vector<DeviceLimits>& limits, std::vector<Check>& checks) {
  for (const RankFacts* first : firstOfEachHost(evidence.ranks)) {
    const DeviceLimits* own = limitsOf(limits, first->device);
    judgeClock(*first, checks);
    judgeMemory(*first, evidence, own, checks);
    judgeSwap(*first, own, checks);
    judgeDisk(*first, checks);
    judgeShare(*first, reading::stolen, "time stolen by other guests", stolenLimit,
               "the hypervisor gives the processors to others: ask for dedicated ones", checks);
    judgeShare(*first, reading::hostThrottle, "processors slowed down for heat", hostThrottleLimit,
               "let air to the machine, look at its fans", checks);
  }
  for (const RankFacts& rank : evidence.ranks) judgeDeviceMemory(rank, checks);
}

}  // namespace tandem::telemetry::detail
