#pragma once
// What --version prints.

#include <string>

#include "apps/shared/program.h"

namespace tandem::app {

// The number alone: "0.1.0".
std::string version();

// All lines.
std::string versionText(const Program& program);

}  // namespace tandem::app
