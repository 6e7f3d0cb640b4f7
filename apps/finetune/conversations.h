#pragma once
// From what --data and --val name to datasets: conversation files are encoded, datasets are taken as they are.

#include <string>
#include <vector>

#include "common/comm/communicator.h"
#include "common/tokenizer/chat_template.h"
#include "common/train/options.h"

namespace tandem::finetune {

struct ConversationSettings {
  std::string chatTemplate;  // by name; empty: the base's own
  bool skipBadRecords = false;
  bool pairs = false;             // the records are preferences
  double validationFraction = 0;  // of the conversations of --data, to evaluate on; 0: none
  int threads = 1;
};

// Whether a conversation file is among options.data and options.validation. Collective.
bool namesConversations(comm::Communicator& world, const train::TrainOptions& options);

// Replaces the conversation files among options.data and options.validation by datasets in the folder data/ of the run,
// whose lock is held, and adds the held-out part. Collective; throws what is wrong with the input on every rank.
void encodeConversations(comm::Communicator& world, train::TrainOptions& options, const ConversationSettings& settings);

}  // namespace tandem::finetune
