#include "common/telemetry/event_log.h"

#include <ctime>
#include <nlohmann/json.hpp>

#include "common/base/json.h"

namespace tandem::telemetry {

void EventLog::append(const Event& event) {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char time[32];
  std::strftime(time, sizeof time, "%Y-%m-%dT%H:%M:%SZ", &utc);
  nlohmann::ordered_json line{{"time", time}, {"step", event.step}, {"event", event.kind}};
  if (!event.prompt.empty()) line["prompt"] = event.prompt;
  line["text"] = event.text;
  // A sample may end within a character.
  file_.append(base::lenientJsonText(line) + "\n");
}

}  // namespace tandem::telemetry
