#pragma once
// What --version prints.

#include <string>

#include "apps/shared/program.h"

namespace tandem::app {

std::string versionText(const Program& program);

}  // namespace tandem::app
