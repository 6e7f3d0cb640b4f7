#pragma once
// report.html: what a run recorded, as one page that needs no network and no script: how it stands, curves, who waited
// for whom, what happened, what the model writes, how it was made.

#include <string>

#include "common/telemetry/run_record.h"

namespace tandem::telemetry {

std::string reportHtml(const RunRecord& record);

}  // namespace tandem::telemetry
