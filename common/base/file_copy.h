#pragma once
// Copying a part of one file into another without the bytes passing through the program where the system can do that.

#include <cstdint>

#include "common/base/files.h"

namespace tandem::base {

// Copies `bytes` bytes from one offset to another. Throws Error of kind file, also where the source ends before.
void copyBytes(const File& source, std::int64_t sourceOffset, const File& target, std::int64_t targetOffset,
               std::int64_t bytes);

}  // namespace tandem::base
