#pragma once
// Who holds a run up, and by what: a slow device, a busy host, slow data, a slow network. Judged from the times of all
// ranks over the last steps; a pure function of them, the same on every rank.

#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tandem::telemetry {

// What a rank tells of a step. Not a number: not reported.
struct RankReport {
  static constexpr double unknown = std::numeric_limits<double>::quiet_NaN();

  double stepSeconds = 0;
  double computeSeconds = 0;
  double waitSeconds = 0;
  double communicationSeconds = 0;  // waiting for a slower rank inside an exchange included
  double dataSeconds = 0;
  double checkpointSeconds = unknown;  // before the step, where a checkpoint was taken
  double peakMemoryBytes = 0;
  double clockMegahertz = unknown;  // of the device, else of the processors, as all below
  double powerWatts = unknown;      // of the device, else this rank's share of the packages
  double temperatureCelsius = unknown;
  double throttleReasons = unknown;
  double stolenShare = unknown;  // of the time of its host's processors, as the next two
  double busyShare = unknown;
  double ownShare = unknown;  // of this rank's process alone
  double availableBytes = unknown;
  double majorFaults = unknown;  // pages of its host that had to come from a disk, since the step before
};
constexpr std::int64_t numbersOfReport = sizeof(RankReport) / sizeof(double);

// Of a step. A share alone misleads where steps are tiny: a thread that is woken up some tenths of a millisecond later
// than another's is a tenth of a step of 2.5 ms. This is what a scheduler gives another thread at a time.
constexpr double negligibleSeconds = 0.003;

enum class Holdup { device, host, data, network };

struct Straggler {
  Holdup cause = Holdup::device;
  int rank = -1;       // none for the network
  double pace = 1;     // at which the rank works, of the others' pace
  double jobPace = 1;  // of what it could be
  std::string text;    // "rank 1 on spark-b computes at 0.41 x ...; the job runs at 0.41 x; without it 1.22 x faster"
};

class StragglerWatch {
 public:
  // `exchangedBytes`: what a rank sends in a step.
  StragglerWatch(std::vector<std::string> hosts, double exchangedBytes);

  // Of the next step. A finding is told once, and again when it has gone and come back.
  std::optional<Straggler> add(std::vector<RankReport> ranks);

 private:
  std::vector<std::string> hosts_;
  double exchangedBytes_;
  std::deque<std::vector<RankReport>> steps_;  // of all ranks
  std::optional<std::pair<Holdup, int>> told_;
  int stepsWithoutIt_ = 0;
};

}  // namespace tandem::telemetry
