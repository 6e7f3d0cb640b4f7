// Lines of conversation files: what is taken keeps to the order of turns and has something to learn.

#include "common/data/conversation.h"

#include <algorithm>

#include "tests/fuzz/fuzz.h"

namespace tandem::fuzz {

void fuzzOne(std::string_view bytes) {
  for (std::string_view rest = bytes; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    accepts([&] {
      const data::Conversation conversation = data::parseConversation(line);
      demand(conversation.messages.empty() != conversation.text.empty(), "a record is a conversation or a text");
      demand(tokenizer::whatIsWrongWithTurns(conversation.messages).empty(), "turns are in order");
      const bool answers =
          std::ranges::count(conversation.messages, tokenizer::ChatRole::assistant, &tokenizer::ChatMessage::role) > 0;
      demand(conversation.messages.empty() || answers, "a conversation has an answer");
    });
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
  }
  accepts([&] {
    if (const auto chat = tokenizer::ChatTemplate::recognised(bytes)) {
      demand(tokenizer::ChatTemplate::recognised(chat->jinja()).has_value(),
             "a template is known again by its own text");
    }
  });
}

}  // namespace tandem::fuzz
