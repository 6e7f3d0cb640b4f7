#pragma once

#include <vector>

namespace tandem::telemetry {

// The middle of the values, which are not empty; of an even number the mean of both middle ones.
double median(std::vector<double> values);

}  // namespace tandem::telemetry
