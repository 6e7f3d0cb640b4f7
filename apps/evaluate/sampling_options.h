#pragma once
// How the next token is chosen, as generate and chat are told.

#include "apps/shared/program.h"
#include "common/runtime/sampler.h"

namespace tandem::evaluate {

void declareSamplingOptions(CLI::App& app, runtime::SamplingOptions& options);

}  // namespace tandem::evaluate
