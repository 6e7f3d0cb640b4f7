#pragma once

#include "apps/shared/program.h"

namespace tandem::app {

// `tokenize inspect`: what a dataset or a tokenizer holds.
Command inspectCommand();

}  // namespace tandem::app
