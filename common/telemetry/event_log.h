#pragma once
// What happened in a run besides its steps: events.jsonl, one JSON object a line, written by rank 0. A resumed run adds
// to it: what happened has happened, also to steps that are taken once more.

#include <cstdint>
#include <filesystem>
#include <string>

#include "common/telemetry/appended_file.h"

namespace tandem::telemetry {

struct Event {
  std::int64_t step = 0;  // after which it happened
  std::string kind;       // "start", "resume", "straggler", "loss_spike", "skipped", "sample", "stop", "end"
  std::string text;       // of a sample what the model wrote
  std::string prompt;     // of a sample
};

// All failures throw Error of kind file.
class EventLog {
 public:
  explicit EventLog(std::filesystem::path path) : file_(std::move(path)) {}
  void append(const Event& event);
  void sync() { file_.sync(); }

 private:
  AppendedFile file_;
};

}  // namespace tandem::telemetry
