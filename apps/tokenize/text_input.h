#pragma once
// The options that say which text is read and how, shared by the commands that read text.

#include <string>
#include <vector>

#include "apps/shared/program.h"
#include "common/data/block_reader.h"
#include "common/data/corpus.h"
#include "common/data/text_source.h"

namespace tandem::app {

struct TextInput {
  std::vector<std::string> arguments;
  std::string separator;  // as typed
  data::TextOptions options;
};

void declareTextInput(CLI::App& options, TextInput& input);

// The files, found by rank 0, after the separator as typed has been understood. Collective.
std::vector<data::TextFile> findInput(comm::Communicator& world, TextInput& input);

// Warns of what was odd.
void logReport(const data::InputReport& report);

}  // namespace tandem::app
