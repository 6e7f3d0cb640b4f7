// Does each device do what its kind does, and if not, why? One figure alone misleads: utilisation is 96 % on a unit
// held at a third of its clock, and a unit at its full clock may still be slow at memory. So they are read together.

#include <algorithm>
#include <array>
#include <cmath>

#include "common/base/units.h"
#include "common/telemetry/detail/checklist.h"
#include "common/telemetry/device_sensors.h"

namespace tandem::telemetry::detail {
namespace {

constexpr double loaded = 0.8;  // utilisation below which clocks say nothing
// A clock that its owner has set is reached but for this: a limit for free clocks, scaled, would let more pass.
constexpr double lockedPart = 0.95;
constexpr double heldPart = 0.9;  // of the rate that a load began with, at its end

struct Quantity {
  const char* name;
  const char* subject;
  Better better;
  bool scalesWithClock;
  std::string (*text)(double);
};

std::string flopsText(double rate) { return base::formatFlops(rate) + "/s"; }
std::string ratioText(double ratio) { return numberText(ratio, "x", 2); }
std::string megahertzText(double value) { return numberText(value, "MHz"); }
std::string wattsText(double value) { return numberText(value, "W", 1); }
std::string celsiusText(double value) { return numberText(value, "degrees C"); }

constexpr std::array<Quantity, 9> limited{{
    {reading::deviceClock, "clock under load", Better::more, true, megahertzText},
    {reading::devicePower, "power under load", Better::more, true, wattsText},
    {reading::deviceTemperature, "temperature under load", Better::less, false, celsiusText},
    {reading::thermalSlowdown, "time slowed down for heat", Better::less, false, shareText},
    {reading::matrixRate, "matrix products", Better::more, true, flopsText},
    {reading::readBandwidth, "reading memory", Better::more, false, bandwidthText},
    {reading::copyBandwidth, "copying memory", Better::more, false, bandwidthText},
    {reading::gemvToCopy, "matrix times vector, of copying", Better::more, false, ratioText},
    {reading::attentionRate, "attention", Better::more, true, flopsText},
}};

// A rank with its device's limits, as they are at the clock that its owner has set.
class Patient {
 public:
  Patient(const RankFacts& rank, const DeviceLimits& limits, const std::optional<double>& lockedClock)
      : rank_(rank), limits_(limits) {
    lockedClock_ = lockedClock;
    if (lockedClock && limits.nominalClockMegahertz) {
      clockScale_ = std::min(1.0, *lockedClock / *limits.nominalClockMegahertz);
    }
  }

  const RankFacts& rank() const { return rank_; }
  const DeviceLimits& limits() const { return limits_; }
  std::optional<double> get(const char* name) const { return rank_.get(name); }

  std::optional<Limit> limit(const Quantity& quantity) const {
    const auto found = limits_.limits.find(quantity.name);
    if (found == limits_.limits.end()) return std::nullopt;
    const double scale = quantity.scalesWithClock ? clockScale_ : 1;
    Limit limit{found->second.pass * scale, found->second.fail * scale};
    if (lockedClock_ && quantity.name == reading::deviceClock) {
      limit.pass = std::min(found->second.pass, lockedPart * *lockedClock_);
    }
    return limit;
  }

  std::optional<Verdict> verdict(const char* name) const {
    const auto* quantity =
        std::ranges::find_if(limited, [&](const Quantity& q) { return q.name == std::string(name); });
    const std::optional<double> value = get(name);
    const std::optional<Limit> own = limit(*quantity);
    if (!value || !own) return std::nullopt;
    return verdictOf(*value, *own, quantity->better);
  }
  bool falls(const char* name) const { return verdict(name).value_or(Verdict::go) != Verdict::go; }
  bool fails(const char* name) const { return verdict(name) == Verdict::noGo; }
  bool isThrottledBy(std::uint64_t reasons) const { return (rank_.throttleReasons.value_or(0) & reasons) != 0; }
  bool isIdle() const { return get(reading::deviceUtilisation).value_or(1) < loaded; }

 private:
  const RankFacts& rank_;
  const DeviceLimits& limits_;
  std::optional<double> lockedClock_;
  double clockScale_ = 1;
};

std::string told(const Patient& patient) {
  std::string text;
  auto add = [&](const std::optional<double>& value, std::string (*write)(double), const std::string& what) {
    text += (text.empty() ? "" : ", ") + (value ? write(*value) : std::string("unknown")) + what;
  };
  add(patient.get(reading::deviceClock), megahertzText, "");
  add(patient.get(reading::deviceUtilisation), shareText, " utilised");
  add(patient.get(reading::devicePower), wattsText, "");
  add(patient.get(reading::deviceTemperature), celsiusText, "");
  const auto& reasons = patient.rank().throttleReasons;
  return text + ", throttle reasons: " + (reasons ? throttle::text(*reasons) : "unknown");
}

struct Diagnosis {
  Verdict verdict = Verdict::go;
  std::string cause;
  std::string advice;
};

Diagnosis stuckAtLowPower(const Patient& patient, Verdict verdict) {
  const std::string cure = patient.limits().powerCycle;
  return {verdict, "held at low power without saying so",
          (cure.empty() ? "take all power from the unit for a minute" : cure) +
              "; locking the clock does not help; if it comes back, try another supply"};
}

// A clock short of its limit, by what goes with it.
Diagnosis diagnoseClock(const Patient& patient) {
  const Verdict verdict = *patient.verdict(reading::deviceClock);
  if (patient.isThrottledBy(throttle::thermal) || patient.falls(reading::deviceTemperature) ||
      patient.falls(reading::thermalSlowdown)) {
    return {verdict, "slowed down by heat",
            "let air to the unit (space on all sides, clean inlets), or lower its clock: nvidia-smi -lgc 0,2100"};
  }
  if (patient.isThrottledBy(throttle::powerBrake | throttle::hardwareSlowdown | throttle::softwarePowerCap)) {
    return {verdict, "slowed down for want of power",
            "use the supply that came with it, at a socket of its own; look at its power limit"};
  }
  if (patient.isIdle()) {
    return {Verdict::unknown, "not busy enough for its clock to tell", "end what else uses the device, and try again"};
  }
  return stuckAtLowPower(patient, verdict);
}

Diagnosis diagnose(const Patient& patient) {
  if (patient.falls(reading::deviceClock)) return diagnoseClock(patient);
  if (patient.fails(reading::thermalSlowdown) || patient.fails(reading::deviceTemperature)) {
    return {Verdict::noGo, "slowed down by heat",
            "let air to the unit (space on all sides, clean inlets), or lower its clock: nvidia-smi -lgc 0,2100"};
  }
  const bool isClockKnown = patient.get(reading::deviceClock).has_value();
  if (patient.falls(reading::gemvToCopy)) {
    return {*patient.verdict(reading::gemvToCopy),
            std::string("slow at reading matrices") +
                (isClockKnown ? " while its clock looks well" : ", and its clock is not reported"),
            "restart the unit; if that does not help, " +
                (patient.limits().powerCycle.empty() ? "take all power from it" : patient.limits().powerCycle)};
  }
  if (patient.fails(reading::matrixRate)) {
    if (!isClockKnown) {
      return {Verdict::noGo, "slow, and its clock is not reported", "look at its clock and power while it works"};
    }
    return {Verdict::noGo, "slow at its full clock",
            "a build for another device? CUDA 13 with sm_121 is needed; see that nothing else uses the device"};
  }
  return {};
}

void addRows(const Patient& patient, const Diagnosis& diagnosis, std::vector<Check>& checks) {
  for (const Quantity& quantity : limited) {
    const std::optional<Limit> limit = patient.limit(quantity);
    if (!limit) continue;
    const std::optional<double> value = patient.get(quantity.name);
    const bool more = quantity.better == Better::more;
    Check check{.subject = quantity.subject,
                .place = placeOf(patient.rank()),
                .verdict = value ? verdictOf(*value, *limit, quantity.better) : Verdict::unknown,
                .value = value ? quantity.text(*value) : "not reported",
                .limit = (more ? "at least " : "below ") + quantity.text(limit->pass) + ", no-go " +
                         (more ? "below " : "above ") + quantity.text(limit->fail)};
    const bool isClock = quantity.name == reading::deviceClock || quantity.name == reading::devicePower;
    if (isClock && diagnosis.verdict == Verdict::unknown && check.verdict != Verdict::go) {
      check.verdict = Verdict::unknown;
    }
    if (check.verdict == Verdict::noGo || check.verdict == Verdict::warning) {
      check.advice = diagnosis.advice.empty() ? "see that nothing else uses the device" : "";
    }
    checks.push_back(check);
  }
}

void judgeKnown(const Patient& patient, std::vector<Check>& checks) {
  const Diagnosis diagnosis = diagnose(patient);
  checks.push_back({.subject = "condition of " + patient.rank().device,
                    .place = placeOf(patient.rank()),
                    .verdict = diagnosis.verdict,
                    .value = (diagnosis.cause.empty() ? "" : diagnosis.cause + ": ") + told(patient),
                    .limit = patient.limits().file,
                    .advice = diagnosis.advice});
  addRows(patient, diagnosis, checks);
}

// What was measured, for the reader to judge.
std::string measuredText(const RankFacts& rank) {
  std::string text;
  for (const Quantity& quantity : limited) {
    if (const auto value = rank.get(quantity.name))
      text += ", " + std::string(quantity.subject) + " " + quantity.text(*value);
  }
  if (rank.device.empty()) {
    if (const auto clock = rank.get(reading::hostClock)) text += ", clock under load " + megahertzText(*clock);
    if (const auto heat = rank.get(reading::hostTemperature)) text += ", temperature " + celsiusText(*heat);
  }
  return text.empty() ? "none known" : "none known; measured " + text.substr(2);
}

void judgeUnknown(const RankFacts& rank, std::vector<Check>& checks) {
  checks.push_back({.subject = "limits of " + (rank.device.empty() ? "these processors" : rank.device),
                    .place = placeOf(rank),
                    .verdict = Verdict::unknown,
                    .value = measuredText(rank),
                    .limit = "judged by comparison with the other ranks only",
                    .advice = ""});
  constexpr std::uint64_t alarming = throttle::hardwareSlowdown | throttle::thermal | throttle::powerBrake;
  if (rank.throttleReasons && (*rank.throttleReasons & alarming)) {
    checks.push_back({.subject = "throttle reasons",
                      .place = placeOf(rank),
                      .verdict = Verdict::warning,
                      .value = throttle::text(*rank.throttleReasons),
                      .limit = "none of hardware or heat",
                      .advice = "look after its cooling and its supply"});
  }
}

// What sags under a load that lasts says so only to who looks twice. A warning: what it sags to is judged above.
void judgeHeldRate(const RankFacts& rank, std::vector<Check>& checks) {
  const std::optional<double> held = rank.get(reading::matrixRateHeld);
  if (!held) return;
  const bool holds = *held >= heldPart;
  checks.push_back(
      {.subject = "rate at the end of the load",
       .place = placeOf(rank),
       .verdict = holds ? Verdict::go : Verdict::warning,
       .value = numberText(*held, "x that at its beginning", 2),
       .limit = "at least " + ratioText(heldPart),
       .advice =
           holds ? "" : "it will be slower still in hours: look at heat and supply, or at what else began to run"});
}

}  // namespace

void judgeDevices(const Evidence& evidence, const std::vector<DeviceLimits>& limits, std::vector<Check>& checks) {
  for (const RankFacts& rank : evidence.ranks) {
    if (!rank.whyNoSensors.empty()) {
      checks.push_back({"clock, power, temperature", placeOf(rank), Verdict::unknown, rank.whyNoSensors, "", ""});
    }
    const DeviceLimits* own = limitsOf(limits, rank.device);
    if (own == nullptr || own->limits.empty()) {
      judgeUnknown(rank, checks);
    } else {
      judgeKnown({rank, *own, evidence.lockedClockMegahertz}, checks);
    }
    judgeHeldRate(rank, checks);
  }
}

}  // namespace tandem::telemetry::detail
