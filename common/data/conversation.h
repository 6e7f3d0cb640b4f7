#pragma once
// A line of a conversation file (JSON Lines), in any of the forms that are common:
//
//   {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
//   {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}        ShareGPT
//   {"prompt": "...", "completion": "..."}
//   {"instruction": "...", "input": "...", "output": "..."}        input may be missing or empty; both make the user's
//   turn
//   {"text": "..."}                                     no conversation: a text of which every token is learned
// The middle three may have a "system" text besides; fields that are not named here are passed over. Roles are system,
// user (human) and assistant (gpt, chatbot, bot, model); the order of turns is checked (tokenizer/chat_template.h), and
// an assistant's turn must be there.

#include <string>
#include <string_view>
#include <vector>

#include "common/tokenizer/chat_template.h"

namespace tandem::data {

struct Conversation {
  std::vector<tokenizer::ChatMessage> messages;
  std::string text;  // of a record without turns, and then the only member
};

// Throws Error of kind badData that says what is wrong with the line; where it stands is for the caller to add.
Conversation parseConversation(std::string_view line);

// Two answers to one conversation, of which one is preferred, in the forms that TRL reads too:
//   {"prompt": "...", "chosen": "...", "rejected": "..."}      with a "system" text or without
//   {"prompt": [turns], "chosen": [turns], "rejected": [turns]}
//   {"chosen": [turns], "rejected": [turns]}                   each the whole conversation; a "prompt" text besides is
//   passed over
// with turns as in "messages". Each is the whole conversation here, and ends with an assistant's turn.
struct Preference {
  std::vector<tokenizer::ChatMessage> chosen, rejected;
};

// Throws like parseConversation; two that are the same are an error too.
Preference parsePreference(std::string_view line);

}  // namespace tandem::data
