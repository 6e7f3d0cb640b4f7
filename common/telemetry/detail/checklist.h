#pragma once
// What the parts of preflight's judgement share: collecting checks, and writing quantities.

#include <cstdint>
#include <string>
#include <vector>

#include "common/telemetry/preflight.h"

namespace tandem::telemetry::detail {

std::string placeOf(const RankFacts& rank);

std::string bandwidthText(double bytesPerSecond);  // "218.4 GB/s"
std::string shareText(double share);               // "96.0 %"
std::string numberText(double value, const std::string& unit, int digits = 0);

enum class Better { more, less };
// Against a limit: go at or beyond pass, no-go short of fail, a warning in between.
Verdict verdictOf(double value, const Limit& limit, Better better);

// The first ranks of each host, in the order of the ranks.
std::vector<const RankFacts*> firstOfEachHost(const std::vector<RankFacts>& ranks);

// The parts, each adding its checks.
void judgeVersions(const Evidence& evidence, std::vector<Check>& checks);
void judgeHosts(const Evidence& evidence, const std::vector<DeviceLimits>& limits, std::vector<Check>& checks);
void judgeDevices(const Evidence& evidence, const std::vector<DeviceLimits>& limits, std::vector<Check>& checks);
void compareRanks(const Evidence& evidence, std::vector<Check>& checks);
void judgeLinks(const Evidence& evidence, const std::vector<DeviceLimits>& limits, std::vector<Check>& checks);
void judgeTrial(const Evidence& evidence, std::vector<Check>& checks);

}  // namespace tandem::telemetry::detail
