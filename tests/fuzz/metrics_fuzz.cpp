// metrics.jsonl as a run finds it when it goes on from a checkpoint.

#include "common/telemetry/metrics.h"
#include "tests/fuzz/fuzz.h"

void tandem::fuzz::fuzzOne(std::string_view bytes) {
  const std::string kept = telemetry::linesUpTo(bytes, 40, 30);
  demand(kept.empty() || kept.back() == '\n', "lines are whole");
  demand(telemetry::linesUpTo(kept, 40, 30) == kept, "what was kept is kept again");
  demand(telemetry::linesUpTo(bytes, 39, 30).size() <= kept.size(), "an earlier step keeps less");
}
