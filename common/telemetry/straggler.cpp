#include "common/telemetry/straggler.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "common/base/units.h"
#include "common/telemetry/device_sensors.h"

namespace tandem::telemetry {
namespace {

constexpr std::size_t windowSteps = 16;  // a finding stands within 20 steps
constexpr double slower = 1.1;           // than the others, to be named
constexpr double leastCost = 0.05;       // of a step: less is not worth a word, nor is negligibleSeconds
constexpr double slowDataShare = 0.1;    // of a step, spent on reading by one rank and not by the others
constexpr double slowNetworkShare = 0.5;
constexpr double slowNetworkRate = 100e6;  // bytes per second: what a link of 1 Gbit/s carries
constexpr double leastExchange = 4e6;  // bytes in a step: the rate of less is that of starting it; takes 40 ms if slow
constexpr double busyByOthers = 0.1;   // of the host's processors
constexpr double stolen = 0.05;
constexpr double lowClock = 0.9;  // of the others'

// Of the values that are known; NaN where none is.
double quantile(std::vector<double> values, double part) {
  std::erase_if(values, [](double value) { return std::isnan(value); });
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(part * static_cast<double>(values.size() - 1));
  std::ranges::nth_element(values, at);
  return *at;
}

std::string written(double value, const char* format) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

// What the rank told of itself at last.
std::string state(const RankReport& report) {
  std::string text;
  auto add = [&](double value, const char* format) {
    if (!std::isnan(value)) text += (text.empty() ? "" : ", ") + written(value, format);
  };
  add(report.clockMegahertz, "%.0f MHz");
  add(report.powerWatts, "%.1f W");
  add(report.temperatureCelsius, "%.0f degrees C");
  if (!std::isnan(report.throttleReasons) && report.throttleReasons > 0) {
    const std::string reasons = throttle::text(static_cast<std::uint64_t>(report.throttleReasons));
    if (reasons != "none") text += (text.empty() ? "" : ", ") + reasons;
  }
  return text.empty() ? text : " (" + text + ")";
}

using Value = double RankReport::*;

// A rank that takes longer than the others, in seconds of a step (medians).
struct Outlier {
  int rank = -1;
  double own = 0, others = 0;
};

// The last steps, looked at together.
class Window {
 public:
  Window(const std::vector<std::string>& hosts, double exchangedBytes, const std::deque<std::vector<RankReport>>& steps)
      : hosts_(hosts), exchangedBytes_(exchangedBytes), steps_(steps) {
    std::vector<double> seconds;
    for (const auto& step : steps_) {
      seconds.push_back(std::ranges::max(step, {}, &RankReport::stepSeconds).stepSeconds);
    }
    stepSeconds_ = quantile(seconds, 0.5);
  }

  std::optional<Straggler> slowData() const {
    const std::optional<Outlier> slow = outlier(&RankReport::dataSeconds, 2);
    if (!slow || slow->own < slowDataShare * stepSeconds_ || !matters(*slow)) return std::nullopt;
    return finding(Holdup::data, *slow,
                   name(slow->rank) + " waits " + written(100 * slow->own / stepSeconds_, "%.0f %%") +
                       " of each step for its data");
  }

  std::optional<Straggler> slowComputing() const {
    const std::optional<Outlier> slow = outlier(&RankReport::computeSeconds, slower);
    if (!slow || !matters(*slow)) return std::nullopt;
    const std::string busy = isDeviceSlow(slow->rank) ? "" : whyHostIsBusy(slow->rank);
    std::string text = name(slow->rank) + " computes at " + written(slow->others / slow->own, "%.2f x") +
                       state(last(slow->rank)) + (busy.empty() ? "" : ": its host is busy, " + busy);
    return finding(busy.empty() ? Holdup::device : Holdup::host, *slow, std::move(text));
  }

  // The time of the rank that waits for nobody is the exchange's own.
  std::optional<Straggler> slowNetwork() const {
    std::vector<double> own;
    for (const auto& step : steps_) {
      own.push_back(std::ranges::min(step, {}, &RankReport::communicationSeconds).communicationSeconds);
    }
    const double seconds = quantile(own, 0.5), rate = exchangedBytes_ / seconds;
    if (exchangedBytes_ < leastExchange || seconds < slowNetworkShare * stepSeconds_ || rate > slowNetworkRate) {
      return std::nullopt;
    }
    return Straggler{.cause = Holdup::network,
                     .jobPace = 1 - std::min(0.99, seconds / stepSeconds_),
                     .text = "the network holds all ranks up: exchanges take " +
                             written(100 * seconds / stepSeconds_, "%.0f %%") + " of each step, at " +
                             written(rate * 1e-6, "%.1f MB/s") + " a rank"};
  }

 private:
  int ranks() const { return static_cast<int>(hosts_.size()); }
  const std::string& host(int rank) const { return hosts_[static_cast<std::size_t>(rank)]; }
  std::string name(int rank) const { return "rank " + std::to_string(rank) + " on " + host(rank); }
  const RankReport& last(int rank) const { return steps_.back()[static_cast<std::size_t>(rank)]; }

  std::vector<double> values(int rank, Value value) const {
    std::vector<double> found;
    for (const auto& step : steps_) found.push_back(step[static_cast<std::size_t>(rank)].*value);
    return found;
  }
  std::vector<double> valuesOfOthers(int rank, Value value) const {
    std::vector<double> found;
    for (int other = 0; other < ranks(); ++other) {
      if (other == rank) continue;
      const std::vector<double> own = values(other, value);
      found.insert(found.end(), own.begin(), own.end());
    }
    return found;
  }

  // The rank with the largest median, when nearly all of its steps are slower than nearly all of the others'. Of many
  // ranks' steps that takes longer to find out than that there is none, as in nearly all steps: then no other rank's
  // median can be so far below.
  std::optional<Outlier> outlier(Value value, double factor) const {
    Outlier worst;
    double least = std::numeric_limits<double>::infinity();
    for (int rank = 0; rank < ranks(); ++rank) {
      const double own = quantile(values(rank, value), 0.5);
      least = std::min(least, own);
      if (worst.rank < 0 || own > worst.own) worst = {rank, own, 0};
    }
    const double quickest = quantile(values(worst.rank, value), 0.2);
    if (quickest <= factor * least) return std::nullopt;
    const std::vector<double> others = valuesOfOthers(worst.rank, value);
    worst.others = quantile(others, 0.5);
    return quickest > factor * quantile(others, 0.8) ? std::optional(worst) : std::nullopt;
  }

  // What it costs all ranks is worth a word.
  bool matters(const Outlier& slow) const {
    return slow.own - slow.others >= std::max(negligibleSeconds, leastCost * stepSeconds_);
  }

  // With ranks of one pace the job would run at 1; without this one, on as many less.
  Straggler finding(Holdup cause, const Outlier& slow, std::string text) const {
    Straggler found{.cause = cause, .rank = slow.rank, .pace = slow.others / slow.own, .text = std::move(text)};
    found.jobPace = std::clamp(1 - (slow.own - slow.others) / stepSeconds_, 0.01, 1.0);
    const double without = (ranks() - 1) / (ranks() * found.jobPace);
    found.text += "; the job runs at " + written(found.jobPace, "%.2f x");
    if (without > 1) found.text += "; without it " + written(without, "%.2f x faster");
    return found;
  }

  bool isDeviceSlow(int rank) const {
    const RankReport& own = last(rank);
    const auto reasons = std::isnan(own.throttleReasons) ? 0 : static_cast<std::uint64_t>(own.throttleReasons);
    if (reasons & (throttle::thermal | throttle::hardwareSlowdown | throttle::powerBrake)) return true;
    const double others = quantile(valuesOfOthers(rank, &RankReport::clockMegahertz), 0.5);
    return own.clockMegahertz < lowClock * others;  // false where either is unknown
  }

  // What else its host does; empty when nothing is known of it.
  std::string whyHostIsBusy(int rank) const {
    const RankReport& own = last(rank);
    if (own.stolenShare > stolen) return written(100 * own.stolenShare, "%.0f %% of its time goes to other guests");
    double ours = 0;
    for (int other = 0; other < ranks(); ++other) {
      if (host(other) == host(rank)) ours += last(other).ownShare;
    }
    const double foreign = own.busyShare - ours;
    if (foreign > busyByOthers) return written(100 * foreign, "%.0f %% of its processors run other programs");
    return "";
  }

  const std::vector<std::string>& hosts_;
  double exchangedBytes_;
  const std::deque<std::vector<RankReport>>& steps_;
  double stepSeconds_ = 0;
};

}  // namespace

StragglerWatch::StragglerWatch(std::vector<std::string> hosts, double exchangedBytes)
    : hosts_(std::move(hosts)), exchangedBytes_(exchangedBytes) {}

std::optional<Straggler> StragglerWatch::add(std::vector<RankReport> ranks) {
  if (ranks.size() < 2) return std::nullopt;
  steps_.push_back(std::move(ranks));
  if (steps_.size() < windowSteps) return std::nullopt;
  if (steps_.size() > windowSteps) steps_.pop_front();
  const Window window(hosts_, exchangedBytes_, steps_);
  std::optional<Straggler> found = window.slowData();
  if (!found) found = window.slowComputing();
  if (!found) found = window.slowNetwork();
  if (!found) {
    if (++stepsWithoutIt_ > static_cast<int>(windowSteps)) told_.reset();
    return std::nullopt;
  }
  stepsWithoutIt_ = 0;
  const std::pair key(found->cause, found->rank);
  if (told_ == key) return std::nullopt;
  told_ = key;
  return found;
}

}  // namespace tandem::telemetry
