#pragma once
// The commands of `evaluate`, a file each.

#include "apps/shared/program.h"

namespace tandem::evaluate {

app::Command lossCommand();      // loss, perplexity and bits per byte on datasets
app::Command tasksCommand();     // questions with known answers
app::Command generateCommand();  // text that goes on from prompts
app::Command chatCommand();      // a conversation at the terminal
app::Command speedCommand();     // latency, tokens per second, memory
app::Command compareCommand();   // runs side by side

}  // namespace tandem::evaluate
