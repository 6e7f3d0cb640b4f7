#pragma once

#include "apps/shared/program.h"

namespace tandem::app {

// `tokenize train`: text to tokenizer.json.
Command trainCommand();

}  // namespace tandem::app
