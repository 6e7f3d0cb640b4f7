#pragma once
// The judgement of preflight: from facts to verdicts, and to one word. A pure function: what it says of a unit in a
// known bad state is tested without one.

#include <string>
#include <vector>

#include "common/telemetry/device_limits.h"
#include "common/telemetry/preflight_facts.h"

namespace tandem::telemetry {

constexpr int exitNoGo = 4;

enum class Verdict {
  go,
  warning,
  noGo,
  unknown,  // the fact could not be had: says nothing either way
};
const char* name(Verdict verdict);  // "go", "warning", "no-go", "unknown"

struct Check {
  std::string subject;  // "matrix products"
  std::string place;    // "rank 1 (spark-b)", "spark-b", "all ranks"
  Verdict verdict = Verdict::unknown;
  std::string value;
  std::string limit;   // what it is held against
  std::string advice;  // what to do; empty for go
};

// In the order of the subjects.
std::vector<Check> judge(const Evidence& evidence, const std::vector<DeviceLimits>& limits);
bool isGo(const std::vector<Check>& checks);

// A table for people, with what to do below it.
std::string preflightTable(const std::vector<Check>& checks, const Evidence& evidence);
// All of it: checks, facts of every rank, links, trial.
std::string preflightJson(const std::vector<Check>& checks, const Evidence& evidence);

}  // namespace tandem::telemetry
