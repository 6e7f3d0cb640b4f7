#pragma once
// The record of this process's current communication call, and the thread that watches it (see setWatchdogLimit).

#include <atomic>
#include <chrono>
#include <cstdint>

namespace tandem::comm::detail {

// Stands while a call of the library may block. Nested ones count as the outermost.
class CallScope {
 public:
  // The name must live for ever. The seconds spent are added to `waited`.
  CallScope(const char* name, std::int64_t bytes, std::atomic<double>& waited);
  ~CallScope();
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

 private:
  std::atomic<double>& waited_;
  bool outermost_;
  std::chrono::steady_clock::time_point start_;
};

// Runs from construction to destruction. `abortJob` ends every process of the job; it is called from the watching
// thread.
class Watchdog {
 public:
  explicit Watchdog(void (*abortJob)());
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
};

}  // namespace tandem::comm::detail
