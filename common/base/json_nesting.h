#pragma once

#include <string>
#include <string_view>

#include "common/base/error.h"

namespace tandem::base {

// Throws Error of `kind`, beginning with `origin`, for JSON nested more than a hundred deep. Reading JSON needs no
// recursion, but copying, comparing and printing a value do: what strangers wrote must not exhaust the stack there.
void refuseDeepNesting(std::string_view json, ErrorKind kind, const std::string& origin);

}  // namespace tandem::base
