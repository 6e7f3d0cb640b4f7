#pragma once

#include "apps/shared/program.h"

namespace tandem::app {

// `tokenize encode`: text to a dataset, or to one for training and one for validation.
Command encodeCommand();

}  // namespace tandem::app
