#include "common/telemetry/preflight.h"

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "common/base/json.h"
#include "common/base/units.h"
#include "common/telemetry/detail/checklist.h"

namespace tandem::telemetry {
namespace {

using Json = nlohmann::ordered_json;

std::string finishingDate(double secondsFromNow) {
  const std::time_t end = std::time(nullptr) + static_cast<std::time_t>(secondsFromNow);
  std::tm parts{};
  localtime_r(&end, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M", &parts);
  return text;
}

void writeProjection(const TrialFacts& trial, std::ostream& out) {
  const double seconds = trial.projectedSeconds();
  out << "the whole run: " << trial.stepsOfTheRun << " steps in " << base::formatDuration(seconds) << " ("
      << trial.checkpoints << " checkpoints of " << base::formatDuration(trial.checkpointSeconds)
      << "; evaluations not counted), done by " << finishingDate(seconds) << " if it starts now\n";
  out << base::formatFlops(trial.modelFlopsPerSecond) << "/s by 6N + 12LdT";
  if (trial.mfu) out << ", " << detail::shareText(*trial.mfu) << " of " << trial.mfuOf;
  out << "\n";
  if (trial.joules) {
    const double kilowattHours = *trial.joules * static_cast<double>(trial.stepsOfTheRun) / 3.6e6;
    out << detail::numberText(*trial.joules / trial.stepSeconds, "W", 0) << " by " << trial.joulesOf << ", "
        << detail::numberText(kilowattHours, "kWh", 2) << " for the run\n";
  } else {
    out << "energy is not known: neither devices nor packages tell it on every node\n";
  }
}

// Columns line up; what is longer than its column still ends with a space.
std::string column(const std::string& text, std::size_t width) {
  return text + std::string(text.size() < width ? width - text.size() : 1, ' ');
}

std::size_t widthOf(const std::vector<Check>& checks, std::string Check::*text, std::size_t most) {
  std::size_t width = 0;
  for (const Check& check : checks) width = std::max(width, (check.*text).size());
  return std::min(width, most) + 1;
}

}  // namespace

const char* name(Verdict verdict) {
  switch (verdict) {
    case Verdict::go:
      return "go";
    case Verdict::warning:
      return "warning";
    case Verdict::noGo:
      return "no-go";
    case Verdict::unknown:
      return "unknown";
  }
  return "";
}

std::vector<Check> judge(const Evidence& evidence, const std::vector<DeviceLimits>& limits) {
  std::vector<Check> checks;
  detail::judgeVersions(evidence, checks);
  detail::judgeHosts(evidence, limits, checks);
  detail::judgeDevices(evidence, limits, checks);
  detail::compareRanks(evidence, checks);
  detail::judgeLinks(evidence, limits, checks);
  detail::judgeTrial(evidence, checks);
  return checks;
}

bool isGo(const std::vector<Check>& checks) {
  return std::ranges::none_of(checks, [](const Check& check) { return check.verdict == Verdict::noGo; });
}

std::string preflightTable(const std::vector<Check>& checks, const Evidence& evidence) {
  std::ostringstream out;
  const std::size_t subject = widthOf(checks, &Check::subject, 42), place = widthOf(checks, &Check::place, 24);
  for (const Check& check : checks) {
    out << column(name(check.verdict), 8) << column(check.subject, subject) << column(check.place, place)
        << check.value;
    if (check.verdict != Verdict::go && !check.limit.empty()) out << " (" << check.limit << ")";
    out << "\n";
  }
  std::set<std::string> said;
  for (const Check& check : checks) {
    if (check.advice.empty() || !said.insert(check.place + check.advice).second) continue;
    out << (said.size() == 1 ? "\nwhat to do:\n" : "") << "  " << check.place << ", " << check.subject << ": "
        << check.advice << "\n";
  }
  if (evidence.trial) {
    out << "\n";
    writeProjection(*evidence.trial, out);
  }
  out << "\n" << (isGo(checks) ? "go" : "no-go") << "\n";
  return out.str();
}

std::string preflightJson(const std::vector<Check>& checks, const Evidence& evidence) {
  Json rows = Json::array(), ranks = Json::array();
  for (const Check& check : checks) {
    rows.push_back({{"subject", check.subject},
                    {"place", check.place},
                    {"verdict", name(check.verdict)},
                    {"value", check.value},
                    {"limit", check.limit},
                    {"advice", check.advice}});
  }
  for (const RankFacts& rank : evidence.ranks) ranks.push_back(base::parseOrderedJson(toJson(rank)));
  return base::jsonText(
      Json{{"go", isGo(checks)},
           {"checks", rows},
           {"ranks", ranks},
           {"links", base::parseOrderedJson(toJson(evidence.links))},
           {"trial", evidence.trial ? base::parseOrderedJson(toJson(*evidence.trial)) : Json(nullptr)}});
}

}  // namespace tandem::telemetry
