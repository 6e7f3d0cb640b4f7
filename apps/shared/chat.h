#pragma once
// Which chat template a program uses: one asked for by name, else the one that a checkpoint, dataset or tokenizer has.

#include <string>

#include "common/tokenizer/chat_template.h"

namespace tandem::app {

// `name` is --chat-template (empty: not given), `jinja` what `origin` has (empty: none). Throws Error of kind usage for
// an unknown name, of kind badData when there is no template or one that is not known.
tokenizer::ChatTemplate chooseChatTemplate(const std::string& name, const std::string& jinja,
                                           const std::string& origin);

}  // namespace tandem::app
