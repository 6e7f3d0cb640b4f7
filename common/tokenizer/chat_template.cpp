#include "common/tokenizer/chat_template.h"

#include <utility>

#include "common/base/error.h"

namespace tandem::tokenizer {
namespace {

using base::Error;
using base::ErrorKind;

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

// White space as Python's str.strip() has it, of ASCII.
std::string trimmed(const std::string& text) {
  constexpr const char* white = " \t\n\r\v\f";
  const std::size_t begin = text.find_first_not_of(white);
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(white) - begin + 1);
}

// The system's text that a ChatML template writes by itself: a literal that is closed in the same breath.
std::string defaultSystemOf(std::string_view jinja) {
  constexpr std::string_view opening = "<|im_start|>system";
  for (std::size_t at = jinja.find(opening); at != std::string_view::npos; at = jinja.find(opening, at + 1)) {
    std::string_view rest = jinja.substr(at + opening.size());
    if (rest.starts_with("\\n")) {
      rest.remove_prefix(2);
    } else if (rest.starts_with("\n")) {
      rest.remove_prefix(1);
    } else {
      continue;
    }
    const std::string_view text = rest.substr(0, rest.find("<|im_end|>"));
    if (!text.empty() && text.size() < rest.size() && text.find_first_of("'\"{}\\") == std::string_view::npos) {
      return std::string(text);
    }
  }
  return {};
}

constexpr const char* tandemJinja =
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}{{ 'System: ' + "
    "message['content'] | trim + '\\n' }}{% elif message['role'] == 'user' %}{{ 'User: ' + message['content'] | trim + "
    "'\\nAssistant:' }}{% else %}{{ ' ' + message['content'] | trim + eos_token }}{% endif %}{% endfor %}";
constexpr const char* chatmlJinja =
    "{% for message in messages %}@DEFAULT@{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
constexpr const char* chatmlDefault =
    "{% if loop.first and message['role'] != 'system' %}{{ '<|im_start|>system\\n@TEXT@<|im_end|>\\n' }}{% endif %}";
constexpr const char* llama3Jinja =
    "{{ '<|begin_of_text|>' }}{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + "
    "'<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt "
    "%}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}";
constexpr const char* mistralJinja =
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] + '\\n\\n' %}{% set "
    "turns = messages[1:] %}{% else %}{% set system = '' %}{% set turns = messages %}{% endif %}{% for message in "
    "turns "
    "%}{% if message['role'] == 'user' %}{{ ' [INST] ' + (system if loop.first else '') + message['content'] + ' "
    "[/INST]' }}{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}";
constexpr const char* zephyrJinja =
    "{% for message in messages %}{% if message['role'] == 'user' %}{{ '<|user|>\\n' + message['content'] + eos_token "
    "+ "
    "'\\n' }}{% elif message['role'] == 'system' %}{{ '<|system|>\\n' + message['content'] + eos_token + '\\n' }}{% "
    "else "
    "%}{{ '<|assistant|>\\n' + message['content'] + eos_token + '\\n' }}{% endif %}{% endfor %}{% if "
    "add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}";

void replace(std::string& text, std::string_view part, const std::string& by) {
  text.replace(text.find(part), part.size(), by);
}

struct NamedForm {
  const char* name;
  ChatForm form;
};
constexpr NamedForm forms[] = {{"tandem", ChatForm::tandem},
                               {"chatml", ChatForm::chatml},
                               {"llama3", ChatForm::llama3},
                               {"mistral", ChatForm::mistral},
                               {"zephyr", ChatForm::zephyr}};

}  // namespace

const char* name(ChatRole role) {
  switch (role) {
    case ChatRole::system:
      return "system";
    case ChatRole::user:
      return "user";
    case ChatRole::assistant:
      return "assistant";
  }
  return "?";
}

std::string whatIsWrongWithTurns(std::span<const ChatMessage> messages) {
  ChatRole due = ChatRole::user;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const ChatRole role = messages[i].role;
    if (i == 0 && role == ChatRole::system) continue;
    if (role != due) {
      return "turn " + std::to_string(i + 1) + " is the " + name(role) + "'s where the " + name(due) +
             "'s is due (after a system's turn, which is first, user and assistant take turns)";
    }
    due = role == ChatRole::user ? ChatRole::assistant : ChatRole::user;
  }
  return {};
}

ChatTemplate::ChatTemplate(ChatForm form, std::string defaultSystem)
    : form_(form), defaultSystem_(std::move(defaultSystem)) {}

ChatTemplate ChatTemplate::named(const std::string& name) {
  std::string names;
  for (const NamedForm& known : forms) {
    if (name == known.name) return ChatTemplate(known.form);
    names += (names.empty() ? "" : ", ") + std::string(known.name);
  }
  throw Error(ErrorKind::usage, "there is no chat template '" + name + "'; there are " + names);
}

// What a template must write, and what it must not: extensions that we would leave out silently.
std::optional<ChatTemplate> ChatTemplate::recognised(std::string_view jinja) {
  if (has(jinja, "<think>") || has(jinja, "reasoning_content")) return std::nullopt;
  if (has(jinja, "<|im_start|>") && has(jinja, "<|im_end|>")) {
    return ChatTemplate(ChatForm::chatml, defaultSystemOf(jinja));
  }
  if (has(jinja, "<|start_header_id|>") && has(jinja, "<|eot_id|>")) {
    if (has(jinja, "Cutting Knowledge Date")) return std::nullopt;  // of Llama 3.1: it writes the date of today
    return ChatTemplate(ChatForm::llama3);
  }
  if (has(jinja, "' [INST] '") && has(jinja, "' [/INST]'")) return ChatTemplate(ChatForm::mistral);
  if (has(jinja, "<|user|>\\n") && has(jinja, "<|assistant|>") && has(jinja, "eos_token")) {
    return ChatTemplate(ChatForm::zephyr);
  }
  if (jinja == tandemJinja) return ChatTemplate(ChatForm::tandem);
  return std::nullopt;
}

const char* ChatTemplate::name() const {
  for (const NamedForm& known : forms) {
    if (form_ == known.form) return known.name;
  }
  return "?";
}

std::string ChatTemplate::jinja() const {
  switch (form_) {
    case ChatForm::tandem:
      return tandemJinja;
    case ChatForm::chatml: {
      std::string text = chatmlJinja, system;
      if (!defaultSystem_.empty()) {
        system = chatmlDefault;
        replace(system, "@TEXT@", defaultSystem_);
      }
      replace(text, "@DEFAULT@", system);
      return text;
    }
    case ChatForm::llama3:
      return llama3Jinja;
    case ChatForm::mistral:
      return mistralJinja;
    case ChatForm::zephyr:
      return zephyrJinja;
  }
  return {};
}

// A part of a rendered conversation.
struct ChatEncoder::Piece {
  std::string text;
  bool isControl = false;  // the text of a token, where the tokenizer has it, else text
  bool isAnswer = false;
};

ChatEncoder::ChatEncoder(ChatTemplate chat, Tokenizer tokenizer)
    : template_(std::move(chat)), encoder_(std::move(tokenizer), std::int64_t{1} << 20) {
  switch (template_.form()) {
    case ChatForm::chatml:
      need("<|im_start|>");
      answerEnd_ = need("<|im_end|>");
      return;
    case ChatForm::llama3:
      for (const char* token : {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"}) need(token);
      answerEnd_ = need("<|eot_id|>");
      return;
    case ChatForm::tandem:
    case ChatForm::mistral:
    case ChatForm::zephyr:
      break;
  }
  const std::optional<TokenId> end = this->tokenizer().endToken();
  if (!end) {
    throw Error(ErrorKind::badData, std::string("the chat template '") + template_.name() +
                                        "' ends answers with the tokenizer's end token, but it has none");
  }
  answerEnd_ = *end;
}

TokenId ChatEncoder::need(std::string_view token) const {
  if (const std::optional<TokenId> id = tokenizer().specialId(token)) return *id;
  throw Error(ErrorKind::badData, std::string("the chat template '") + template_.name() + "' needs the token " +
                                      std::string(token) +
                                      ", which the tokenizer has not; choose another by --chat-template (tandem needs "
                                      "an end token only)");
}

std::string_view ChatEncoder::textOf(std::optional<TokenId> token) const {
  return token ? tokenizer().tokenBytes(*token) : std::string_view();
}

// Writes messages down piece by piece.
class ChatEncoder::Renderer {
 public:
  Renderer(ChatForm form, std::string_view begin, std::string_view end) : form_(form), begin_(begin), end_(end) {}

  void beginConversation() {
    const bool withBeginToken = form_ == ChatForm::tandem || form_ == ChatForm::mistral;
    if (withBeginToken && !begin_.empty()) control(begin_);
    if (form_ == ChatForm::llama3) control("<|begin_of_text|>");
  }

  void message(const ChatMessage& message) {
    if (form_ == ChatForm::mistral) {
      mistral(message);
    } else if (form_ == ChatForm::tandem) {
      tandem(message);
    } else {
      framed(message);
    }
  }

  // What stands before a message, in the forms that frame each one alike.
  void header(ChatRole role) {
    const std::string who = name(role);
    if (form_ == ChatForm::chatml) {
      control("<|im_start|>");
      write(who + "\n");
    } else if (form_ == ChatForm::llama3) {
      control("<|start_header_id|>");
      write(who);
      control("<|end_header_id|>");
      write("\n\n");
    } else if (form_ == ChatForm::zephyr) {
      control("<|" + who + "|>");
      write("\n");
    }
  }

  std::vector<Piece> take() { return std::move(pieces_); }

 private:
  void write(std::string text) { pieces_.push_back({.text = std::move(text)}); }
  void control(std::string_view text) { pieces_.push_back({.text = std::string(text), .isControl = true}); }
  void answer(std::string text) {
    pieces_.push_back({.text = std::move(text), .isAnswer = true});
    pieces_.push_back({.text = std::string(end_), .isControl = true, .isAnswer = true});
  }

  void framed(const ChatMessage& message) {
    header(message.role);
    std::string content = form_ == ChatForm::llama3 ? trimmed(message.content) : message.content;
    if (message.role == ChatRole::assistant) {
      answer(std::move(content));
    } else {
      write(std::move(content));
      control(end_);
    }
    if (form_ != ChatForm::llama3) write("\n");
  }

  void mistral(const ChatMessage& message) {
    if (message.role == ChatRole::system) {
      system_ = message.content + "\n\n";
    } else if (message.role == ChatRole::user) {
      write(" ");
      control("[INST]");
      write(" " + std::exchange(system_, {}) + message.content + " ");
      control("[/INST]");
    } else {
      answer(" " + message.content);
    }
  }

  void tandem(const ChatMessage& message) {
    const std::string content = trimmed(message.content);
    if (message.role == ChatRole::system) write("System: " + content + "\n");
    if (message.role == ChatRole::user) write("User: " + content + "\nAssistant:");
    if (message.role == ChatRole::assistant) answer(" " + content);
  }

  ChatForm form_;
  std::string_view begin_;
  std::string_view end_;
  std::string system_;  // Mistral: goes into the user's first turn
  std::vector<Piece> pieces_;
};

std::vector<ChatEncoder::Piece> ChatEncoder::render(std::span<const ChatMessage> messages, bool answerFollows) const {
  Renderer renderer(template_.form(), textOf(tokenizer().beginToken()), textOf(answerEnd_));
  renderer.beginConversation();
  const bool hasSystem = !messages.empty() && messages.front().role == ChatRole::system;
  if (!hasSystem && !template_.defaultSystem().empty()) {
    renderer.message({.role = ChatRole::system, .content = template_.defaultSystem()});
  }
  for (const ChatMessage& message : messages) renderer.message(message);
  if (answerFollows) renderer.header(ChatRole::assistant);
  return renderer.take();
}

std::string ChatEncoder::text(std::span<const ChatMessage> messages, bool answerFollows) const {
  std::string text;
  for (const Piece& piece : render(messages, answerFollows)) text += piece.text;
  return text;
}

EncodedChat ChatEncoder::encode(std::span<const ChatMessage> messages, bool answerFollows) {
  EncodedChat encoded;
  std::string pending;  // text whose tokens may still reach into what follows
  bool pendingIsAnswer = false;
  const auto flush = [&] {
    encoder_.encode(pending, encoded.tokens);
    encoded.answers.resize(encoded.tokens.size(), pendingIsAnswer ? 1 : 0);
    pending.clear();
  };
  for (const Piece& piece : render(messages, answerFollows)) {
    if (piece.isAnswer != pendingIsAnswer) flush();
    pendingIsAnswer = piece.isAnswer;
    if (piece.isControl && tokenizer().specialId(piece.text)) {
      flush();
      encoded.tokens.push_back(*tokenizer().specialId(piece.text));
      encoded.answers.push_back(piece.isAnswer ? 1 : 0);
    } else {
      pending += piece.text;
    }
  }
  flush();
  return encoded;
}

}  // namespace tandem::tokenizer
