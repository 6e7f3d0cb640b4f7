#pragma once
// report.html: what a run recorded, as one page that needs no network and no script: how it stands, curves, who waited
// for whom, what happened, what the model writes, how it was made.

#include <chrono>
#include <string>

#include "common/telemetry/run_record.h"

namespace tandem::telemetry {

std::string reportHtml(const RunRecord& record);

// When a page that is written again and again is due: it reads all that was recorded, which takes longer the longer a
// run lasts, and is to take no more than a hundredth of the time.
class ReportPace {
 public:
  using Clock = std::chrono::steady_clock;

  bool isDue(Clock::time_point now) const { return now - end_ >= 99 * took_; }
  void wrote(Clock::time_point begin, Clock::time_point end) {
    end_ = end;
    took_ = end - begin;
  }

 private:
  Clock::time_point end_{};
  Clock::duration took_{};
};

}  // namespace tandem::telemetry
