// Ranks on equal devices do equal work in equal time: who does not is an outlier, whatever the device is.

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "common/base/units.h"
#include "common/telemetry/detail/checklist.h"
#include "common/telemetry/median.h"

namespace tandem::telemetry::detail {
namespace {

struct Compared {
  const char* name;
  const char* subject;
};
constexpr std::array<Compared, 7> compared{{
    {reading::matrixRate, "matrix products beside other ranks"},
    {reading::gemvBandwidth, "matrix times vector beside other ranks"},
    {reading::readBandwidth, "reading memory beside other ranks"},
    {reading::copyBandwidth, "copying memory beside other ranks"},
    {reading::attentionRate, "attention beside other ranks"},
    {reading::deviceClock, "clock beside other ranks"},
    {reading::hostClock, "clock of the processors beside other ranks"},
}};

// As a part of what the others reach. A run goes at the pace of its slowest rank: 0.85 costs a sixth of everything.
constexpr Limit partLimit{.pass = 0.95, .fail = 0.85};
constexpr double madsOfAnOutlier = 3;
constexpr double deviationOfMad = 1.4826;  // standard deviation of a normal distribution, in median deviations

struct Reference {
  double value = 0;      // what a rank should reach
  double tolerance = 0;  // below it that is the spread of the others
  std::string text;
};

// Of two, the better one; of more, the median, and a spread that one outlier does not widen.
Reference referenceOf(const std::vector<double>& values) {
  if (values.size() == 2) return {std::ranges::max(values), 0, "the better of the two"};
  const double middle = median(values);
  std::vector<double> deviations;
  for (const double value : values) deviations.push_back(std::abs(value - middle));
  return {middle, madsOfAnOutlier * deviationOfMad * median(deviations), "the median"};
}

using Group = std::vector<const RankFacts*>;

void compareGroup(const Group& group, const Compared& what, std::vector<Check>& checks) {
  std::vector<double> values;
  for (const RankFacts* rank : group) {
    if (const auto value = rank->get(what.name)) values.push_back(*value);
  }
  if (values.size() < 2) return;
  const Reference reference = referenceOf(values);
  if (reference.value <= 0) return;
  // Ranks on the processors of a host share its memory, and not evenly; and beside a device, processors wait.
  const bool isDecisive =
      what.name == reading::matrixRate || (!group.front()->device.empty() && what.name != reading::hostClock);
  bool anyOutlier = false;
  for (const RankFacts* rank : group) {
    const std::optional<double> value = rank->get(what.name);
    if (!value) continue;
    const double part = *value / reference.value;
    const Verdict verdict = verdictOf(part, partLimit, Better::more);
    if (verdict == Verdict::go || reference.value - *value <= reference.tolerance) continue;
    anyOutlier = true;
    checks.push_back({.subject = what.subject,
                      .place = placeOf(*rank),
                      .verdict = isDecisive ? verdict : Verdict::warning,
                      .value = numberText(part, "x " + reference.text, 2),
                      .limit = isDecisive ? "at least 0.95 x, no-go below 0.85 x" : "at least 0.95 x",
                      .advice = "see what is different on " + rank->host +
                                " (clock, power, heat, other programs), or leave it out"});
  }
  if (anyOutlier) return;
  const double slowest = std::ranges::min(values) / std::ranges::max(values);
  checks.push_back(
      {what.subject, "all ranks", Verdict::go, "slowest " + numberText(slowest, "x the fastest", 2), "no outlier", ""});
}

}  // namespace

void compareRanks(const Evidence& evidence, std::vector<Check>& checks) {
  std::map<std::string, Group> groups;  // by device
  for (const RankFacts& rank : evidence.ranks) groups[rank.device].push_back(&rank);
  for (const auto& [device, group] : groups) {
    for (const Compared& what : compared) compareGroup(group, what, checks);
  }
}

}  // namespace tandem::telemetry::detail
