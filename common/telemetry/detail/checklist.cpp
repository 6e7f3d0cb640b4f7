#include "common/telemetry/detail/checklist.h"

#include <cstdio>
#include <set>

namespace tandem::telemetry::detail {

std::string placeOf(const RankFacts& rank) { return "rank " + std::to_string(rank.rank) + " (" + rank.host + ")"; }

std::string numberText(double value, const std::string& unit, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text + (unit.empty() ? "" : " " + unit);
}

std::string bandwidthText(double bytesPerSecond) {
  return bytesPerSecond >= 1e9 ? numberText(bytesPerSecond * 1e-9, "GB/s", 1)
                               : numberText(bytesPerSecond * 1e-6, "MB/s", 1);
}

std::string shareText(double share) { return numberText(100 * share, "%", 1); }

Verdict verdictOf(double value, const Limit& limit, Better better) {
  const double sign = better == Better::more ? 1 : -1;
  if (sign * value >= sign * limit.pass) return Verdict::go;
  return sign * value < sign * limit.fail ? Verdict::noGo : Verdict::warning;
}

std::vector<const RankFacts*> firstOfEachHost(const std::vector<RankFacts>& ranks) {
  std::vector<const RankFacts*> first;
  std::set<std::string> seen;
  for (const RankFacts& rank : ranks) {
    if (seen.insert(rank.host).second) first.push_back(&rank);
  }
  return first;
}

}  // namespace tandem::telemetry::detail
