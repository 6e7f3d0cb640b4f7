// Is the run itself, tried for some steps, what its owner thinks it is?

#include "common/base/units.h"
#include "common/telemetry/detail/checklist.h"
#include "common/telemetry/straggler.h"

namespace tandem::telemetry::detail {
namespace {

constexpr Limit waitLimit{.pass = 0.1, .fail = 1};
constexpr Limit dataLimit{.pass = 0.05, .fail = 0.5};
constexpr Limit communicationLimit{.pass = 0.3, .fail = 1};

void judgeShare(const char* subject, double share, double stepSeconds, const Limit& limit, const char* advice,
                std::vector<Check>& checks) {
  const bool isNegligible = share * stepSeconds < negligibleSeconds;
  const Verdict verdict = isNegligible ? Verdict::go : verdictOf(share, limit, Better::less);
  checks.push_back({subject, "all ranks", verdict, shareText(share) + " of a step",
                    "at most " + shareText(limit.pass) + ", or " + numberText(1e3 * negligibleSeconds, "ms"),
                    verdict == Verdict::go ? "" : advice});
}

}  // namespace

void judgeTrial(const Evidence& evidence, std::vector<Check>& checks) {
  if (!evidence.trial) return;
  const TrialFacts& trial = *evidence.trial;
  checks.push_back({.subject = "trial of the run",
                    .place = "all ranks",
                    .verdict = trial.finite ? Verdict::go : Verdict::noGo,
                    .value = std::to_string(trial.steps) + " steps of " + base::formatDuration(trial.stepSeconds) +
                             ", " + base::formatCount(trial.tokensPerSecond) + " tokens/s",
                    .limit = "finite losses",
                    .advice = trial.finite ? "" : "lower --learning-rate, raise --warmup-steps, look at the data"});
  const auto judge = [&](const char* subject, double share, const Limit& limit, const char* advice) {
    judgeShare(subject, share, trial.stepSeconds, limit, advice, checks);
  };
  judge("waiting for other ranks", trial.waitShare, waitLimit, "find the slow rank above");
  judge("communication", trial.communicationShare, communicationLimit,
        "a larger --batch-tokens, or a faster link (above)");
  judge("waiting for data", trial.dataShare, dataLimit, "copy the dataset to a local disk");
}

}  // namespace tandem::telemetry::detail
