#pragma once

#include <string>

#include "common/comm/communicator.h"
#include "common/tokenizer/tokenizer.h"

namespace tandem::app {

// The tokenizer of a tokenizer.json, of a folder that holds one, of a .tiktoken file (for which the name of its pattern
// is required, since the file carries none), of any HDF5 file of ours, of a run folder (its newest complete step) or of
// one step's folder. What is read is read by rank 0 alone. Collective.
tokenizer::Tokenizer loadTokenizer(comm::Communicator& world, const std::string& path, const std::string& pattern);

// The chat template (Jinja) that belongs to it: of a dataset or checkpoint its own, else what stands beside
// tokenizer.json in chat_template.jinja or tokenizer_config.json. Empty for none. Collective.
std::string loadChatTemplate(comm::Communicator& world, const std::string& path);

}  // namespace tandem::app
