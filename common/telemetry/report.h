#pragma once
// report.html: what a run recorded, as one page that needs no network and no script: curves, who waited for whom, what
// happened, how it was made. Light or dark as the reader's system is, and narrow enough for a phone.

#include <string>
#include <string_view>

namespace tandem::telemetry {

// Of the texts of metrics.jsonl and run.json. Lines that are no record are passed over.
std::string reportHtml(std::string_view metrics, std::string_view run);

}  // namespace tandem::telemetry
