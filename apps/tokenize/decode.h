#pragma once

#include "apps/shared/program.h"

namespace tandem::app {

// `tokenize decode`: ids, or the documents of a dataset, to text.
Command decodeCommand();

}  // namespace tandem::app
