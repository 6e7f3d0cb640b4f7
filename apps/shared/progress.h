#pragma once
// Progress of long work on stderr, by rank 0 only: a bar that redraws itself on a terminal, one plain log line every
// ten seconds elsewhere.

#include <chrono>
#include <cstdint>
#include <string>

namespace tandem::app {

class Progress {
 public:
  enum class Style { detect, bar, lines };

  // "encoding", 52428800, "B": what is done, how much there is (0: unknown) and its unit.
  Progress(std::string what, std::int64_t total, std::string unit, Style style = Style::detect);
  // Ends the bar's line.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Cheap: draws at most ten times a second. The note stands behind the numbers ("loss 3.21").
  void update(std::int64_t done, const std::string& note = "");
  // Draws the last state now.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;

  void draw(Clock::time_point now);

  std::string what_;
  std::int64_t total_;
  std::string unit_;
  bool bar_;
  bool drawn_ = false;
  std::int64_t done_ = 0;
  std::string note_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point lastDraw_ = start_;
};

}  // namespace tandem::app
