// Is the run itself, tried for some steps, what its owner thinks it is?

#include "common/base/units.h"
#include "common/telemetry/detail/checklist.h"

namespace tandem::telemetry::detail {
namespace {

constexpr Limit waitLimit{.pass = 0.1, .fail = 1};
constexpr Limit dataLimit{.pass = 0.05, .fail = 0.5};
constexpr Limit communicationLimit{.pass = 0.3, .fail = 1};

void judgeShare(const char* subject, double share, const Limit& limit, const char* advice, std::vector<Check>& checks) {
  const Verdict verdict = verdictOf(share, limit, Better::less);
  checks.push_back({subject, "all ranks", verdict, shareText(share) + " of a step", "at most " + shareText(limit.pass),
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
  judgeShare("waiting for other ranks", trial.waitShare, waitLimit, "find the slow rank above", checks);
  judgeShare("communication", trial.communicationShare, communicationLimit,
             "a larger --batch-tokens, or a faster link (above)", checks);
  judgeShare("waiting for data", trial.dataShare, dataLimit, "copy the dataset to a local disk", checks);
}

}  // namespace tandem::telemetry::detail
