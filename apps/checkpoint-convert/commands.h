#pragma once
// The commands of `checkpoint-convert`, by file.

#include "apps/shared/program.h"

namespace tandem::convert {

// convert.cpp
app::Command importCommand();    // somebody else's model to a checkpoint
app::Command exportCommand();    // a model to a Hugging Face folder or a GGUF file
app::Command quantizeCommand();  // a model to a checkpoint of small integers
app::Command reshardCommand();   // a checkpoint to one of another number of shards

// inspect.cpp
app::Command inspectCommand();  // what lies at a path

// compare.cpp
app::Command verifyCommand();  // whether a model is whole, and answers as another does
app::Command diffCommand();    // where the weights of two models differ

// merge.cpp
app::Command mergeCommand();  // means of models, and models with their adapters

}  // namespace tandem::convert
