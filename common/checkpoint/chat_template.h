#pragma once
// The chat template among the texts that go with a model (Metadata::companions).

#include <string>

#include "common/checkpoint/checkpoint.h"

namespace tandem::checkpoint {

// Jinja: chat_template.jinja, else what tokenizer_config.json says; empty for none.
std::string chatTemplateOf(const Metadata& metadata);

// The companions with chat_template.jinja as given; as they are where that is empty.
std::string withChatTemplate(const std::string& companions, const std::string& jinja);

}  // namespace tandem::checkpoint
