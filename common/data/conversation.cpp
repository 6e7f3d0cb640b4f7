#include "common/data/conversation.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/base/error.h"
#include "common/base/json.h"

namespace tandem::data {
namespace {

using nlohmann::json;
using tokenizer::ChatMessage;
using tokenizer::ChatRole;

[[noreturn]] void fail(const std::string& why) { throw base::Error(base::ErrorKind::badData, why); }

json parseObject(std::string_view line) {
  base::refuseDeepNesting(line, base::ErrorKind::badData, "the record");
  try {
    json record = base::parseJson(line);
    if (!record.is_object()) fail("the record is no JSON object");
    return record;
  } catch (const json::exception& error) {
    fail("the record is no JSON: " + base::jsonProblem(error));
  }
}

const std::string& textOf(const json& object, const char* field, const std::string& place) {
  const auto found = object.find(field);
  if (found == object.end()) fail(place + " has no \"" + field + "\"");
  if (!found->is_string()) fail(place + " has a \"" + field + "\" that is no text");
  return found->get_ref<const std::string&>();
}

ChatRole roleOf(const std::string& role, const std::string& place) {
  if (role == "system") return ChatRole::system;
  if (role == "user" || role == "human") return ChatRole::user;
  for (const char* assistant : {"assistant", "gpt", "chatbot", "bot", "model"}) {
    if (role == assistant) return ChatRole::assistant;
  }
  fail(place + " has the role '" + role + "'; known are system, user (human) and assistant (gpt, chatbot, bot, model)");
}

void addTurns(std::vector<ChatMessage>& messages, const json& turns, const char* field, const char* role,
              const char* content) {
  if (!turns.is_array()) fail(std::string("\"") + field + "\" is no list of turns");
  if (turns.empty()) fail(std::string("\"") + field + "\" is an empty list");
  for (std::size_t i = 0; i < turns.size(); ++i) {
    const std::string place = "turn " + std::to_string(i + 1);
    if (!turns[i].is_object()) fail(place + " is no JSON object");
    messages.push_back(
        {.role = roleOf(textOf(turns[i], role, place), place), .content = textOf(turns[i], content, place)});
  }
}

// The system's turn that a record of the short forms may have.
void addSystem(std::vector<ChatMessage>& messages, const json& record) {
  if (!record.contains("system")) return;
  const std::string& system = textOf(record, "system", "the record");
  if (!system.empty()) messages.push_back({.role = ChatRole::system, .content = system});
}

void addPair(std::vector<ChatMessage>& messages, std::string question, std::string answer) {
  messages.push_back({.role = ChatRole::user, .content = std::move(question)});
  messages.push_back({.role = ChatRole::assistant, .content = std::move(answer)});
}

void checkTurns(const std::vector<ChatMessage>& messages) {
  const std::string wrong = tokenizer::whatIsWrongWithTurns(messages);
  if (!wrong.empty()) fail(wrong);
  const bool answers =
      std::ranges::any_of(messages, [](const ChatMessage& message) { return message.role == ChatRole::assistant; });
  if (!answers) fail("the conversation has no assistant's turn, so there is nothing to learn from it");
}

// The conversation with the answer that `field` has.
std::vector<ChatMessage> answeredBy(const json& record, const char* field) {
  std::vector<ChatMessage> messages;
  const auto prompt = record.find("prompt"), answer = record.find(field);
  if (answer == record.end()) fail(std::string("the record has no \"") + field + "\", and a pair needs both answers");
  const auto isWhole = [&] {  // repeats the question, as UltraFeedback has it
    if (!answer->is_array() || answer->empty() || !answer->front().is_object()) return false;
    const auto role = answer->front().find("role");
    return role == answer->front().end() || *role != "assistant";
  };
  addSystem(messages, record);
  if (prompt != record.end() && prompt->is_array()) {
    addTurns(messages, *prompt, "prompt", "role", "content");
  } else if (!isWhole()) {
    messages.push_back({.role = ChatRole::user, .content = textOf(record, "prompt", "the record")});
  }
  if (answer->is_array()) {
    addTurns(messages, *answer, field, "role", "content");
  } else {
    messages.push_back({.role = ChatRole::assistant, .content = textOf(record, field, "the record")});
  }
  checkTurns(messages);
  if (messages.back().role != ChatRole::assistant) {
    fail(std::string("\"") + field + "\" does not end with an assistant's turn");
  }
  return messages;
}

}  // namespace

Preference parsePreference(std::string_view line) {
  const json record = parseObject(line);
  Preference pair{.chosen = answeredBy(record, "chosen"), .rejected = answeredBy(record, "rejected")};
  if (pair.chosen == pair.rejected) fail("\"chosen\" and \"rejected\" are the same, so neither is preferred");
  return pair;
}

Conversation parseConversation(std::string_view line) {
  const json record = parseObject(line);
  Conversation conversation;
  std::vector<ChatMessage>& messages = conversation.messages;
  if (record.contains("messages")) {
    addTurns(messages, record["messages"], "messages", "role", "content");
  } else if (record.contains("conversations")) {
    addSystem(messages, record);
    addTurns(messages, record["conversations"], "conversations", "from", "value");
  } else if (record.contains("prompt")) {
    addSystem(messages, record);
    addPair(messages, textOf(record, "prompt", "the record"), textOf(record, "completion", "the record"));
  } else if (record.contains("instruction")) {
    addSystem(messages, record);
    std::string question = textOf(record, "instruction", "the record");
    if (record.contains("input") && !textOf(record, "input", "the record").empty()) {
      question += "\n\n" + textOf(record, "input", "the record");
    }
    addPair(messages, std::move(question), textOf(record, "output", "the record"));
  } else if (record.contains("text")) {
    conversation.text = textOf(record, "text", "the record");
    if (conversation.text.empty()) fail("the record's \"text\" is empty");
    return conversation;
  } else {
    fail("the record has none of \"messages\", \"conversations\", \"prompt\", \"instruction\" and \"text\"");
  }
  checkTurns(messages);
  return conversation;
}

}  // namespace tandem::data
